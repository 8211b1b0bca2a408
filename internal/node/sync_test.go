package node

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/node/facts"
)

// TestLinksChanged: a link that others know and that is gone makes a plan at once, though a burst has it wait; nothing
// else does.
func TestLinksChanged(t *testing.T) {
	known := lb.Interface{
		Name: "eth0", Index: 2, MAC: lb.MAC{2, 0, 0, 0, 0, 1}, Up: true,
		Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")},
	}
	for name, tt := range map[string]struct {
		links []lb.Interface
		runs  int64
	}{"gone": {nil, 2}, "another one": {[]lb.Interface{known, {Name: "dummy"}}, 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestLoop(noLinks)
				w.loop = daemon.NewLoop(daemon.LoopConfig{Name: "plan", Log: w.log, MinInterval: time.Hour,
					Sync: func(context.Context) (time.Duration, error) { return 0, nil }})
				m := facts.Member([]lb.Interface{known}, nil, nil)
				if len(m.Links) != 1 {
					t.Fatal("the link cannot announce")
				}
				w.sources.Membership.sent.Store(&m)
				background(t, w.loop.Run)
				synctest.Wait()
				w.LinksChanged(tt.links)
				time.Sleep(time.Second)
				if got := w.loop.Completed(); got != tt.runs {
					t.Errorf("%d runs, want %d", got, tt.runs)
				}
			})
		})
	}
}

// servedOn returns Backends of all ports in both families on these nodes.
func servedOn(nodes ...string) lb.Backend {
	return lb.Backend{Families: lb.FamilySetOf(lb.IPv4, lb.IPv6), Nodes: lb.Names{}.With(nodes...)}
}
