package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
)

const (
	// hangTime is how long a run of the plan loop may take. Time in which the process waits for a core, or does not
	// run, does not count.
	hangTime = 10 * time.Second
	// hangInterval is the time between two checks of the present run.
	hangInterval = time.Second
	// minOrphanTime and maxOrphanTime bound how long a node that hangs keeps addresses that no other node takes over.
	// All nodes may hang: if all were restarted at once, no node would answer.
	minOrphanTime, maxOrphanTime = 10 * time.Minute, 15 * time.Minute
	// endTime is how long the process waits for a run when it ends.
	endTime = 3 * time.Second
)

// errHangs ends a process whose plan loop does not end.
var errHangs = errors.New("the plan loop hangs")

// hang runs the plan loop, and detects a run that does not end. It waits for nothing that such a run may hold.
type hang struct {
	loop *daemon.Loop
	// schedDelay returns the total time that this process has waited for a core.
	schedDelay func() time.Duration
	// offer asks other nodes to take over what this node announces, and may be repeated. countOffered returns how many
	// addresses no node has taken over yet.
	offer        func()
	countOffered func() int
	// orphanTime is between minOrphanTime and maxOrphanTime.
	orphanTime time.Duration
	// since is when the present run was found to hang; nil if it was not.
	since atomic.Pointer[time.Time]
}

func newHang(loop *daemon.Loop, offer func(), countOffered func() int) *hang {
	return &hang{
		loop:         loop,
		schedDelay:   func() time.Duration { return daemon.SchedDelay(os.Getpid()) },
		offer:        offer,
		countOffered: countOffered,
		orphanTime:   minOrphanTime + rand.N(maxOrphanTime-minOrphanTime),
	}
}

// Run runs the plan loop until ctx ends. Then it waits for endTime, and returns errHangs if a run goes on.
func (h *hang) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- h.loop.Run(ctx) }()

	tick := time.Tick(hangInterval)
	var run time.Time
	var timer daemon.HangTimer
	for {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			return awaitEnd(ended)
		case <-tick:
		}

		began := h.loop.Began()
		if began.IsZero() || !began.Equal(run) {
			run, timer = began, daemon.HangTimer{}
			h.since.Store(nil)
			continue
		}
		if timer.Advance(hangInterval, h.schedDelay()) >= hangTime {
			found := time.Now()
			h.since.CompareAndSwap(nil, &found)
			h.offer()
		}
	}
}

// awaitEnd waits until the loop has ended, for endTime at most.
func awaitEnd(ended <-chan error) error {
	select {
	case err := <-ended:
		return err
	case <-time.After(endTime):
		return errHangs
	}
}

// alive returns an error if the kubelet should start another process: a run hangs, and the addresses of this node are
// taken over, or no node takes them over for orphanTime.
func (h *hang) alive() error {
	since := h.since.Load()
	if since == nil {
		return nil
	}

	duration := time.Since(*since)
	if h.countOffered() > 0 && duration < h.orphanTime {
		return nil
	}
	return fmt.Errorf("%w, for %v", errHangs, hangTime+duration.Round(time.Second))
}
