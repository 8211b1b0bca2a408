package layer2

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// membership is a multicast group on a link, by the link's index.
type membership struct {
	index int
	group netip.Addr
}

// String returns "group%index", like an address with its scope.
func (m membership) String() string { return fmt.Sprintf("%v%%%d", m.group, m.index) }

// groups holds the memberships that bring us solicitations, and checks whether the
// kernel still has them.
//
// Each membership is held twice. The one of a packet socket makes the link receive
// the group's frames, whatever the link's IPv6 settings. The one of an ordinary socket
// makes the kernel report it by MLD, without which a snooping switch forwards nothing.
type groups struct {
	log           *slog.Logger
	checkInterval time.Duration
	repairs       *atomic.Uint64
	// kernel does the system calls; actual reads the memberships of all ordinary sockets of the host.
	kernel kernel
	actual func() (map[membership]bool, error)

	// desired are those for our addresses and for others' together; parts has them apart.
	desired atomic.Pointer[map[membership]bool]
	mu      sync.Mutex
	parts   [2]map[membership]bool
	wake    chan struct{}
	// received and reported are the memberships of packet and of ordinary sockets.
	received, reported map[membership]bool
	// complaints are the logged failures by link.
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

// Groups of our addresses, and of some of others.
const (
	ofOurs = iota
	ofOthers
)

// set sets a part of the groups to be joined. The caller must not change the map afterwards.
func (g *groups) set(part int, desired map[membership]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.parts[part] = desired
	all := make(map[membership]bool)
	for _, some := range g.parts {
		maps.Copy(all, some)
	}
	g.desired.Store(&all)
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// run joins and leaves groups until the context ends. It has its own goroutine, because
// joining some thousand groups takes time and must not delay announcements.
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

// step is one of the two kinds of membership.
type step struct {
	held map[membership]bool
	call func(m membership, join bool) error
}

// join tries a refusing link, such as one without IPv6, only once for all groups.
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
			// Ignore errors: if the link is gone, so are its groups.
			_ = s.call(m, false)
			delete(s.held, m)
		}
	}
}

func (g *groups) steps() []step {
	return []step{{g.received, g.kernel.receive}, {g.reported, g.kernel.report}}
}

// findLost forgets memberships that the kernel has dropped, for example when IPv6
// was turned off and on, so that the next sync joins them again.
func (g *groups) findLost() {
	if len(g.reported) == 0 {
		return
	}
	actual, err := g.actual()
	if err != nil {
		g.log.Warn("cannot check multicast groups", "error", err)
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
		g.log.Warn("rejoining multicast groups that the kernel lost", "groups", lost)
	}
}

// complain logs new and changed failures.
func (g *groups) complain(now map[int]string) {
	for index, text := range now {
		if g.complaints[index] != text {
			g.log.Warn("cannot join multicast groups", "link", index, "error", text)
		}
	}
	g.complaints = now
}
