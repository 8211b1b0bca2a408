package layer2

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// groupMembership is a multicast group on a link, by the link's index.
type groupMembership struct {
	index int
	group netip.Addr
}

// groups holds the memberships that bring solicitations to this node, and checks whether the
// kernel still has them.
//
// They belong to ordinary sockets, so that the kernel reports them by MLD: without that a snooping switch forwards
// nothing.
type groups struct {
	log     *slog.Logger
	kernel  groupKernel
	repairs *atomic.Uint64

	desired atomic.Pointer[map[groupMembership]bool]
	wake    lb.Signal
	joined  map[groupMembership]bool
	// errors are the logged failures by link.
	errors map[int]string
}

// groupKernel joins and leaves groups with sockets that it owns.
type groupKernel interface {
	join(m groupMembership) error
	leave(m groupMembership)
	// memberships returns the memberships of all sockets of the host.
	memberships() (map[groupMembership]bool, error)
	close()
}

// newGroups returns groups without memberships.
func newGroups(log *slog.Logger, kernel groupKernel, repairs *atomic.Uint64) *groups {
	g := &groups{
		log:     log,
		kernel:  kernel,
		repairs: repairs,
		wake:    lb.NewSignal(),
		joined:  make(map[groupMembership]bool),
		errors:  make(map[int]string),
	}

	g.desired.Store(&map[groupMembership]bool{})
	return g
}

// set takes all groups to be joined. The caller must not change the map afterwards.
func (g *groups) set(desired map[groupMembership]bool) {
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

// sync makes the memberships equal to the desired ones.
func (g *groups) sync() {
	desired := *g.desired.Load()
	if len(desired) == 0 && len(g.joined) == 0 {
		return
	}

	g.leave(desired)
	// A refusing link, such as one without IPv6, is tried only once for all groups.
	errors := make(map[int]string)
	for m := range desired {
		if g.joined[m] || errors[m.index] != "" {
			continue
		}

		if err := g.kernel.join(m); err != nil {
			errors[m.index] = err.Error()
			continue
		}

		g.joined[m] = true
	}

	g.logErrors(errors)
}

// leave leaves groups that are not desired any more. It also leaves memberships that the kernel has dropped, for
// example when IPv6 was turned off and on, so that they are joined again.
func (g *groups) leave(desired map[groupMembership]bool) {
	actual, err := g.kernel.memberships()
	if err != nil {
		g.log.Warn("cannot check multicast groups", "error", err)
		actual = g.joined
	}

	lost := 0
	for m := range g.joined {
		if desired[m] && actual[m] {
			continue
		}

		if desired[m] {
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

// logErrors logs new and changed failures.
func (g *groups) logErrors(errors map[int]string) {
	for index, text := range errors {
		if g.errors[index] != text {
			g.log.Warn("cannot join multicast groups", "link", index, "error", text)
		}
	}

	g.errors = errors
}
