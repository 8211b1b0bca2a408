package heartbeat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/child"
	"github.com/holdfast-lb/holdfast/internal/detect"
)

const (
	// keepaliveInterval is how often the speaker's process shows that it runs. Heartbeats stop when it has
	// not for speakerDownTime, which a node may be without a speaker for other reasons, too.
	keepaliveInterval = 500 * time.Millisecond
	// leaveTime is how long the heartbeat process has to say goodbye, or to print its stacks.
	leaveTime = time.Second
	// lostTime is for how long no heartbeats are sent when their process is ended, startTime the same
	// before the first one: an ordinary process may be kept waiting for a while.
	lostTime, startTime = 3 * time.Second, 10 * time.Second
	// maxPause is the most time between the end of a heartbeat process and its next start.
	maxPause = 5 * time.Second
)

// The files of the heartbeat process.
const (
	memoryFile = child.FirstFile + iota
	guestFile
)

// order is one message to the heartbeat process: what changed. The first has the settings, peers and keys.
type order struct {
	Settings *processSettings  `json:",omitempty"`
	Peers    []Peer            `json:",omitzero"`
	Keys     [][]byte          `json:",omitempty"`
	Answer   *answeredQuestion `json:",omitempty"`
	Leave    bool              `json:",omitempty"`
}

// answeredQuestion is the wire's answer to a question.
type answeredQuestion struct {
	Question detect.WireQuestion
	Answer   detect.WireAnswer
}

// processSettings are the part of Config that the heartbeat process needs.
type processSettings struct {
	NodeName string
	Address  netip.Addr
	Port     uint16
	detect.Timers
	Ordinary bool
	// Cooldown is how long it goes without real-time priority first.
	Cooldown time.Duration
}

// notice is one message from the heartbeat process.
type notice struct {
	View    *detect.View         `json:",omitempty"`
	Ask     *detect.WireQuestion `json:",omitempty"`
	Error   string               `json:",omitempty"`
	Overrun *overrun             `json:",omitempty"`
}

// Process returns the id of the heartbeat process. It returns an error while there is none.
func (h *Heartbeat) Process() (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.child == nil {
		return 0, errors.New("no heartbeat process runs")
	}
	return h.child.PID(), nil
}

// errEnded: the heartbeat process ended by itself.
var errEnded = errors.New("the heartbeat process ended")

// Run has a process of its own take part until ctx is cancelled, then has it say goodbye and returns nil. It starts
// another one when that one ends. In between, the kernel refuses packets: the claim is SpeakerDown, and nothing moves
// for speakerDownTime. It returns an error when the process cannot listen.
func (h *Heartbeat) Run(ctx context.Context) error {
	var cooldown time.Duration
	for {
		began := boottime()
		err := h.runProcess(ctx, cooldown)
		if ctx.Err() != nil || !errors.Is(err, errEnded) {
			return err
		}
		// After a long life at once; else after a pause and without real-time priority for a while, since the kernel
		// may have killed it for that.
		if cooldown = further(cooldown); boottime()-began > forgetTime {
			cooldown = 0
		}
		pause := min(cooldown/10, maxPause)
		h.shared.realtime.Store(false)
		h.shared.restarts.Add(1)
		h.config.Log.Error(
			"heartbeat process ended and is started again",
			"error",
			err,
			"in",
			pause,
			"cooldown",
			cooldown,
		)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// runProcess has one process drive the detector until ctx is cancelled or the process ends.
func (h *Heartbeat) runProcess(ctx context.Context, cooldown time.Duration) error {
	h.shared.keepalive.Store(int64(boottime()))
	guestConn, theirs, err := child.Pair()
	if err != nil {
		return fmt.Errorf("start the heartbeat process: %w", err)
	}
	defer guestConn.Close()
	c, err := child.Start(h.config.Command, h.config.Stderr, h.memory, theirs) // as Serve expects the files
	_ = theirs.Close()
	if err != nil {
		return fmt.Errorf("start the heartbeat process: %w", err)
	}
	defer c.Conn.Close()
	h.attach(c, cooldown)
	defer h.attach(nil, 0)
	running, stop := context.WithCancel(ctx)
	defer stop()
	go h.keepAlive(running, c)
	failed := make(chan error, 1)
	go func() { failed <- h.readNotices(c.Conn) }()
	var guest sync.WaitGroup
	guest.Go(func() { h.config.Guest(guestConn) })
	select {
	case err = <-c.Ended():
	case <-ctx.Done():
		h.mu.Lock()
		h.pass(order{Leave: true})
		h.mu.Unlock()
		defer time.AfterFunc(leaveTime, c.Kill).Stop()
		err = <-c.Ended()
	}
	why := <-failed
	guest.Wait()
	switch {
	case why != nil:
		return why
	case err != nil:
		return fmt.Errorf("%w: %w", errEnded, err)
	case ctx.Err() == nil:
		return errEnded
	}
	return nil
}

// attach sends the process what is known so far, and from now on what changes; nil sends nothing any more.
func (h *Heartbeat) attach(c *child.Process, cooldown time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.child = c
	s := &h.config
	h.pass(order{
		Settings: &processSettings{s.NodeName, s.Address, s.Port, s.Timers, s.Ordinary, cooldown},
		Peers:    h.peers, Keys: h.keys,
	})
}

// pass hands an order to the process, if it runs. mu is held. It has no deadline: the process reads at once, and a lost
// order would not be repeated. It fails only when the process has ended, which runProcess notices.
func (h *Heartbeat) pass(o order) {
	if h.child != nil {
		_ = json.NewEncoder(h.child.Conn).Encode(o)
	}
}

// readNotices takes what the process sends until it ends, and returns the error that kept it from running, if it sent
// one.
func (h *Heartbeat) readNotices(conn net.Conn) error {
	for in := json.NewDecoder(conn); ; {
		var n notice
		if err := in.Decode(&n); err != nil {
			return nil // the kernel knows how it ended
		}
		switch {
		case n.Error != "":
			return errors.New(n.Error)
		case n.View != nil:
			before := h.view.Swap(new(n.View.Sets()))
			h.logChanges(before.View, *n.View)
			h.config.Changed()
		case n.Overrun != nil:
			h.config.Log.Warn(
				"heartbeat process exceeded its CPU budget and goes on without real-time priority for a while",
				"why",
				n.Overrun.Why,
				"for",
				n.Overrun.Cooldown,
				"user",
				n.Overrun.User,
				"system",
				n.Overrun.System,
				"stacks",
				n.Overrun.Stacks,
			)
		case n.Ask != nil:
			h.ask(*n.Ask)
		}
	}
}

// keepAlive shows the heartbeat process that this one runs, and kills it when it sends no heartbeats: each moves the
// deadline of the Lease. It counts how often it looked, not time: this process may itself not have run.
func (h *Heartbeat) keepAlive(ctx context.Context, c *child.Process) {
	tick := time.NewTicker(keepaliveInterval)
	defer tick.Stop()
	deadline, patience := h.shared.lease.deadline.Load(), startTime
	for looks := 0; time.Duration(looks)*keepaliveInterval < patience; looks++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			h.shared.keepalive.Store(int64(boottime()))
		}
		if moved := h.shared.lease.deadline.Load(); moved != deadline {
			deadline, patience, looks = moved, lostTime, -1
		}
	}
	c.Quit()
	h.config.Log.Error("no heartbeats are sent: killing their process")
	defer time.AfterFunc(leaveTime, c.Kill).Stop()
	<-ctx.Done()
}
