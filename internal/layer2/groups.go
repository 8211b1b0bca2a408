package layer2

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// membership is a multicast group on a link, by the link's index.
type membership struct {
	index int
	group netip.Addr
}

// groups holds the memberships that bring us solicitations, and checks whether the
// kernel still has them.
//
// They are those of ordinary sockets, which the kernel reports by MLD: without that a snooping switch forwards nothing.
type groups struct {
	log     *slog.Logger
	repairs *atomic.Uint64
	// kernel does the system calls; actual reads the memberships of all sockets of the host.
	kernel kernel
	actual func() (map[membership]bool, error)

	desired atomic.Pointer[map[membership]bool]
	wake    lb.Signal
	joined  map[membership]bool
	// complaints are the logged failures by link.
	complaints map[int]string
}

// kernel joins and leaves groups with sockets that it owns.
type kernel interface {
	join(m membership) error
	leave(m membership)
	close()
}

func newGroups(log *slog.Logger, repairs *atomic.Uint64) *groups {
	g := &groups{
		log: log, repairs: repairs,
		kernel: &groupSockets{}, actual: readIGMP6,
		wake: lb.NewSignal(), joined: make(map[membership]bool), complaints: make(map[int]string),
	}

	g.desired.Store(&map[membership]bool{})
	return g
}

// set takes all groups to be joined. The caller must not change the map afterwards.
func (g *groups) set(desired map[membership]bool) {
	g.desired.Store(&desired)
	g.wake.Kick()
}

// run joins and leaves groups until the context ends. It has its own goroutine, because
// joining some thousand groups takes time and must not delay announcements.
func (g *groups) run(ctx context.Context) {
	defer g.kernel.close()
	check := time.NewTicker(checkInterval)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
		case <-check.C:
		}

		g.sync()
	}
}

func (g *groups) sync() {
	desired := *g.desired.Load()
	if len(desired) == 0 && len(g.joined) == 0 {
		return
	}

	g.leave(desired)
	// A refusing link, such as one without IPv6, is tried only once for all groups.
	refuses := make(map[int]string)
	for m := range desired {
		if g.joined[m] || refuses[m.index] != "" {
			continue
		}

		if err := g.kernel.join(m); err != nil {
			refuses[m.index] = err.Error()
			continue
		}

		g.joined[m] = true
	}

	g.complain(refuses)
}

// leave leaves groups that are not desired any more, and forgets memberships that the kernel has dropped, for example
// when IPv6 was turned off and on, so that they are joined again.
func (g *groups) leave(desired map[membership]bool) {
	actual, err := g.actual()
	if err != nil {
		g.log.Warn("cannot check multicast groups", "error", err)
		actual = g.joined
	}

	lost := 0
	for m := range g.joined {
		switch {
		case desired[m] && actual[m]:
			continue
		case desired[m]:
			lost++
		}

		g.kernel.leave(m)
		delete(g.joined, m)
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
