package bgp

import (
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// A route that comes and goes a thousand times, as with an endpoint that is restarted again and again, ends as it should in both
// routers. No session falls, and the other routes never leave a router's kernel.
func TestInteropRouteFlaps(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		l := newLab(t)
		s, _ := run(t)
		stable := []lb.Route{route(both4, "bird4", "frr4"), route(both6, "bird6", "frr6")}
		const flapping4, flapping6 = "198.51.100.7/32", "2001:db8:ffff::7/128"
		all := append(stable[:2:2], route(flapping4, "bird4", "frr4"), route(flapping6, "bird6", "frr6"))
		set(t, s, desire(l.peers(), all...))
		there := func() bool {
			return l.frrKernel.has(flapping4) && l.frrKernel.has(flapping6) && l.birdKernel.has(flapping4) && l.birdKernel.has(flapping6)
		}
		nstest.Until(t, patience, "the routes arrive", func() bool {
			return there() && l.frrKernel.has(both4) && l.frrKernel.has(both6) && l.birdKernel.has(both4) && l.birdKernel.has(both6)
		})
		established(t, s, "frr4", "frr6", "bird4", "bird6")
		before := s.Sessions()
		for range 1000 {
			set(t, s, desire(l.peers(), stable...))
			set(t, s, desire(l.peers(), all...))
		}
		set(t, s, desire(l.peers(), stable...))
		nstest.Until(t, patience, "the routes are gone", func() bool {
			return !l.frrKernel.has(flapping4) && !l.frrKernel.has(flapping6) && !l.birdKernel.has(flapping4) && !l.birdKernel.has(flapping6)
		})
		set(t, s, desire(l.peers(), all...))
		nstest.Until(t, patience, "the routes are back", there)
		for i, now := range s.Sessions() {
			if now.State != lb.Established || !now.Since.Equal(before[i].Since) {
				t.Errorf("%s is %s since %v, was up since %v", now.Peer, now.State, now.Since, before[i].Since)
			}
		}
		if frr, bird := l.frrKernel.lost(both4, both6), l.birdKernel.lost(both4, both6); frr != nil || bird != nil {
			t.Errorf("%v left FRR's kernel, %v BIRD's", frr, bird)
		}
	})
}
