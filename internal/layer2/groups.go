package layer2

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"
)

// membership is a multicast group on a link, by the link's index.
type membership struct {
	index int
	group netip.Addr
}

// String returns "group%index", as an address with its scope is written.
func (m membership) String() string { return fmt.Sprintf("%v%%%d", m.group, m.index) }

// groups holds the memberships that bring solicitations to us, and looks whether
// the kernel still has them.
//
// Each is held twice. A packet socket's makes the link receive the group's
// frames, whatever IPv6 is set to there. An ordinary socket's makes the kernel
// report it by MLD, without which a switch that snoops forwards nothing.
type groups struct {
	log           *slog.Logger
	checkInterval time.Duration
	repairs       *atomic.Uint64
	// kernel does the system calls; actual reads what is joined by ordinary sockets, of anyone.
	kernel kernel
	actual func() (map[membership]bool, error)

	desired atomic.Pointer[map[membership]bool]
	wake    chan struct{}
	// received and reported are the memberships of packet and of ordinary sockets.
	received, reported map[membership]bool
	// complaints are what failed on a link and was logged.
	complaints map[int]string
}

// kernel joins and leaves groups with sockets that it owns.
type kernel interface {
	// receive joins or leaves for receiving frames, report for reporting by MLD.
	receive(m membership, join bool) error
	report(m membership, join bool) error
	close()
}

func newGroups(log *slog.Logger, checkInterval time.Duration, repairs *atomic.Uint64) *groups {
	g := &groups{
		log: log, checkInterval: checkInterval, repairs: repairs,
		kernel: &groupSockets{}, actual: readIGMP6,
		wake:     make(chan struct{}, 1),
		received: make(map[membership]bool), reported: make(map[membership]bool),
		complaints: make(map[int]string),
	}
	g.desired.Store(&map[membership]bool{})
	return g
}

// set makes exactly these groups joined. It never blocks, and the map must not change any more.
func (g *groups) set(desired map[membership]bool) {
	g.desired.Store(&desired)
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// run joins and leaves until the context ends. It is apart from the goroutine
// that announces, because joining some thousand groups takes its time.
func (g *groups) run(ctx context.Context) error {
	defer g.kernel.close()
	check := time.NewTicker(g.checkInterval)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.wake:
		case <-check.C:
		}
		g.sync()
	}
}

func (g *groups) sync() {
	desired := *g.desired.Load()
	if len(desired) == 0 && len(g.received) == 0 && len(g.reported) == 0 {
		return
	}
	g.findLost()
	complaints := make(map[int]string)
	for _, step := range g.steps() {
		step.join(desired, complaints)
	}
	for _, step := range g.steps() {
		step.leave(desired)
	}
	g.complain(complaints)
}

// step is one of the two ways to be a member.
type step struct {
	held map[membership]bool
	call func(m membership, join bool) error
}

// join asks a link that refuses, as one without IPv6 does, only once for all groups.
func (s step) join(desired map[membership]bool, complaints map[int]string) {
	refuses := make(map[int]bool)
	for m := range desired {
		if s.held[m] || refuses[m.index] {
			continue
		}
		if err := s.call(m, true); err != nil {
			refuses[m.index] = true
			complaints[m.index] = err.Error()
			continue
		}
		s.held[m] = true
	}
}

func (s step) leave(desired map[membership]bool) {
	for m := range s.held {
		if !desired[m] {
			// A link that is gone has taken its groups along: an error changes nothing.
			_ = s.call(m, false)
			delete(s.held, m)
		}
	}
}

func (g *groups) steps() []step {
	return []step{{g.received, g.kernel.receive}, {g.reported, g.kernel.report}}
}

// findLost forgets the memberships that the kernel has dropped, for example as
// IPv6 was turned off and on again, so that they are joined anew.
func (g *groups) findLost() {
	if len(g.reported) == 0 {
		return
	}
	actual, err := g.actual()
	if err != nil {
		g.log.Warn("cannot check multicast groups", "err", err)
		return
	}
	desired := *g.desired.Load()
	lost := 0
	for m := range g.reported {
		if actual[m] || !desired[m] {
			continue
		}
		lost++
		_ = g.kernel.report(m, false)
		delete(g.reported, m)
	}
	if lost > 0 {
		g.repairs.Add(uint64(lost))
		g.log.Warn("join multicast groups anew that the kernel lost", "groups", lost)
	}
}

// complain logs what fails and did not fail in the same way before.
func (g *groups) complain(now map[int]string) {
	for index, text := range now {
		if g.complaints[index] != text {
			g.log.Warn("cannot join multicast groups", "link", index, "err", text)
		}
	}
	g.complaints = now
}
