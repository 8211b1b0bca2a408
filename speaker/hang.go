package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
)

const (
	// hangTime is how long a run of the plan loop may take. What this process waits for a core does not count, nor does
	// a time in which it does not run.
	hangTime = 10 * time.Second
	// hangLook is the time between two looks at the present run.
	hangLook = time.Second
	// minLonely and maxLonely bound how long a node that hangs keeps what no other node takes over: all may hang, and
	// if all were started again at once nobody would answer.
	minLonely, maxLonely = 10 * time.Minute, 15 * time.Minute
	// endTime is how long the process waits for a run when it ends.
	endTime = 3 * time.Second
	// stackSize bounds the stacks in the log.
	stackSize = 32 << 10
)

// errHangs ends a process whose plan loop does not.
var errHangs = errors.New("the plan loop hangs")

// hang runs the plan loop, and notices a run that does not end. It waits for nothing that such a run may hold.
type hang struct {
	loop *daemon.Loop
	// waited returns how long this process has waited for a core in all.
	waited func() time.Duration
	// offer has others take over what this node announces, and may be repeated; left returns how much nobody has taken.
	offer func()
	left  func() int
	// lonely is between minLonely and maxLonely.
	lonely time.Duration
	// since is when the present run was found to hang; nil if it was not.
	since atomic.Pointer[time.Time]
}

func newHang(w *syncer, runs *daemon.Loop) *hang {
	return &hang{
		loop:   runs,
		waited: func() time.Duration { return daemon.SchedDelay(os.Getpid()) },
		offer:  w.offer,
		left:   func() int { return len(w.layer2.Offered()) },
		lonely: minLonely + rand.N(maxLonely-minLonely),
	}
}

// Run runs the plan loop until ctx ends. It does not wait long for a run that goes on.
func (h *hang) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- h.loop.Run(ctx) }()
	tick := time.Tick(hangLook)
	var run time.Time
	var timer daemon.HangTimer
	for {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			select {
			case err := <-ended:
				return err
			case <-time.After(endTime):
				return errHangs
			}
		case <-tick:
		}
		began := h.loop.Began()
		switch {
		case began.IsZero() || !began.Equal(run):
			run, timer = began, daemon.HangTimer{}
			h.since.Store(nil)
		case timer.Advance(hangLook, h.waited()) >= hangTime:
			found := time.Now()
			h.since.CompareAndSwap(nil, &found)
			h.offer()
		}
	}
}

// alive returns an error if the kubelet should start another process: a run hangs, and either others have taken over
// all that this node announced, or nobody does.
func (h *hang) alive() error {
	since := h.since.Load()
	if since == nil || h.left() > 0 && time.Since(*since) < h.lonely {
		return nil
	}
	return fmt.Errorf("%w, for %v", errHangs, hangTime+time.Since(*since).Round(time.Second))
}

// offer has others take over the addresses of this node because its plan loop hangs: it tells them that it stops, and
// answers until it hears them. Its routes stay. It logs last, since the run may hang in the log.
func (w *syncer) offer() {
	again := w.hung.Swap(true)
	if !again {
		w.loop.Kick() // the next run hands over in good order, the one after it is as ever
	}
	w.layer2.Offer()
	if m, told := w.membership.members.Load(), w.told.Load(); m != nil && told != nil {
		self := *told
		self.Stopping = true
		m.SetSelf(self)
	}
	if !again {
		stacks := make([]byte, stackSize)
		stacks = stacks[:runtime.Stack(stacks, true)]
		w.log.Error(
			"a run of the plan loop hangs: others are to take the addresses of this node over",
			"for",
			hangTime,
			"stacks",
			string(stacks),
		)
	}
}
