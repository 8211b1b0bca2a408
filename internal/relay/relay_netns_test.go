package relay

import (
	"testing"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// Connections that were opened by way of the former owner go on when the client
// takes the new one for the owner. Without relays they all break.
func TestConnectionsSurvive(t *testing.T) {
	for name, relayed := range map[string]bool{"relayed": true, "not relayed": false} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				w := newWorld(t)
				w.serve()
				w.owner(w.former)
				open := w.connections(100)
				w.run(w.relayer)
				want := 0
				if relayed {
					w.relayer.Set(w.desired())
					want = 100
				}
				w.owner(w.node)
				for vip, list := range open {
					if n := w.alive(list); n != want {
						t.Errorf("%s: of %d connections %d are alive, want %d", vip, len(list), n, want)
					}
				}
				// New connections are this node's own, and their packets too.
				before := w.relayer.State()
				for vip, list := range w.connections(10) {
					if n := w.alive(list); n != len(list) {
						t.Errorf("%s: of %d new connections %d are alive", vip, len(list), n)
					}
				}
				for i, f := range w.relayer.State().Families {
					if relayed && f.Packets == 0 || f.Packets != before.Families[i].Packets {
						t.Errorf("%s: %d packets relayed, then %d", f.Family, before.Families[i].Packets, f.Packets)
					}
				}
			})
		})
	}
}
