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
	// keepaliveInterval is how often the speaker's process shows that it runs. If it does not for
	// detect.SpeakerDownTime, heartbeats stop.
	keepaliveInterval = 500 * time.Millisecond
	// leaveTime is how long the heartbeat process has to say goodbye, or to print its stacks.
	leaveTime = time.Second
	// lostTime is how long no heartbeats are sent until their process is killed, and startTime the same before the
	// first one: an ordinary process may be kept waiting for a while.
	lostTime, startTime = 3 * time.Second, 10 * time.Second
	// maxPause is the longest time between the end of a heartbeat process and the next start.
	maxPause = 5 * time.Second
)

// The files of the heartbeat process.
const (
	memoryFile = child.FirstFile + iota
	guestFile
)

// order is a message to the heartbeat process with what changed. The first one has settings, peers and keys.
type order struct {
	Settings *processSettings  `json:",omitempty"`
	Peers    []Peer            `json:",omitzero"`
	Links    []Link            `json:",omitzero"`
	Keys     [][]byte          `json:",omitempty"`
	Answer   *answeredQuestion `json:",omitempty"`
	Leave    bool              `json:",omitempty"`
	// opened are new links of Links, in the process that gets the order.
	opened []*linkPath
}

// answeredQuestion is a question for the wire with its answer.
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
	// Cooldown is how long the process goes without real-time priority first.
	Cooldown time.Duration
}

// childNotice is a message from the heartbeat process.
type childNotice struct {
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

// errEnded means that the heartbeat process ended by itself.
var errEnded = errors.New("the heartbeat process ended")

// Run has a heartbeat process take part until ctx is cancelled. Then it has the process say goodbye, and returns nil.
// It starts another process when one ends. In between, the kernel refuses packets: others claim SpeakerDown, and
// nothing moves for detect.SpeakerDownTime. Run returns an error when the process cannot listen.
func (h *Heartbeat) Run(ctx context.Context) error {
	var cooldown time.Duration
	for {
		began := boottime()
		err := h.runProcess(ctx, cooldown)
		if ctx.Err() != nil || !errors.Is(err, errEnded) {
			return err
		}

		// After a long life it starts at once. Otherwise it starts after a pause, and goes without real-time priority
		// for a while, because the kernel may have killed it for that.
		cooldown = nextCooldown(cooldown)
		if boottime()-began > forgetTime {
			cooldown = 0
		}
		pause := min(cooldown/10, maxPause)
		h.shared.realtime.Store(false)
		h.shared.restarts.Add(1)
		h.config.Log.Error("heartbeat process ended and is started again",
			"error", err, "in", pause, "cooldown", cooldown)

		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// runProcess has one process drive the detector, until ctx is cancelled or the process ends.
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
		h.sendOrder(order{Leave: true})
		h.mu.Unlock()
		defer time.AfterFunc(leaveTime, c.Kill).Stop()
		err = <-c.Ended()
	}
	reported := <-failed
	guest.Wait()

	switch {
	case reported != nil:
		return reported
	case err != nil:
		return fmt.Errorf("%w: %w", errEnded, err)
	case ctx.Err() == nil:
		return errEnded
	}

	return nil
}

// attach sends a process the settings, peers and keys, and from then on each change. With nil it sends no more.
func (h *Heartbeat) attach(c *child.Process, cooldown time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.child = c
	s := &h.config
	h.sendOrder(order{
		Settings: &processSettings{
			NodeName: s.NodeName,
			Address:  s.Address,
			Port:     s.Port,
			Timers:   s.Timers,
			Ordinary: s.Ordinary,
			Cooldown: cooldown,
		},
		Peers: h.peers,
		Links: h.links,
		Keys:  h.keys,
	})
}

// sendOrder sends an order to the process, if it runs. The caller holds mu. There is no deadline: the process reads
// at once, and a lost order would not be repeated. It fails only when the process has ended, which runProcess
// notices.
func (h *Heartbeat) sendOrder(o order) {
	if h.child != nil {
		_ = json.NewEncoder(h.child.Conn).Encode(o)
	}
}

// readNotices reads what the process sends until it ends. It returns the error that kept the process from running, if
// the process sent one.
func (h *Heartbeat) readNotices(conn net.Conn) error {
	in := json.NewDecoder(conn)
	for {
		var n childNotice
		if err := in.Decode(&n); err != nil {
			return nil // runProcess gets from the kernel how it ended
		}

		switch {
		case n.Error != "":
			return errors.New(n.Error)
		case n.View != nil:
			before := h.view.Swap(new(n.View.Sets()))
			h.logChanges(before.View, *n.View)
			h.config.Changed()
		case n.Overrun != nil:
			h.logOverrun(n.Overrun)
		case n.Ask != nil:
			h.ask(*n.Ask)
		}
	}
}

func (h *Heartbeat) logOverrun(o *overrun) {
	h.config.Log.Warn("heartbeat process exceeded its CPU budget and goes on without real-time priority for a while",
		"why", o.Why, "for", o.Cooldown, "user", o.User, "system", o.System, "stacks", o.Stacks)
}

// keepAlive shows the heartbeat process that this one runs, and kills it when it sends no heartbeats: each heartbeat
// moves the deadline of the Lease. It counts its own looks rather than time, because this process may not have run
// either.
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
		moved := h.shared.lease.deadline.Load()
		if moved != deadline {
			deadline, patience = moved, lostTime
			looks = -1
		}
	}

	c.Quit()
	h.config.Log.Error("no heartbeats are sent: killing their process")
	defer time.AfterFunc(leaveTime, c.Kill).Stop()
	<-ctx.Done()
}
