package layer2

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestStuckLink: a link that takes no frames does not delay another one, and gets its announcements as soon as it takes
// frames again.
//
// Trap: one goroutine waits for each frame of the stuck link.
func TestStuckLink(t *testing.T) {
	const addresses = 500
	good := lb.Interface{Index: 3, Name: "eth1", MAC: otherMAC, Up: true}
	synctest.Test(t, func(t *testing.T) {
		lan := newFakeLAN(eth0, good)
		lan.stuck.Store(true)
		r := lan.responder()
		defer run(t, r)()
		r.Set(Desired{Announcements: manyAddresses(addresses)})
		announced := func(within time.Duration, mac lb.MAC) int {
			seen := make(map[netip.Addr]bool)
			for end := time.After(within); ; {
				select {
				case f := <-lan.out:
					if m, out := r.protocols[1].parse(f, askerMAC); out == answered && m.mac == mac {
						seen[m.claimed] = true
					} else if m, out := r.protocols[0].parse(f, askerMAC); out == answered && m.mac == mac {
						seen[m.claimed] = true
					}
				case <-end:
					return len(seen)
				}
			}
		}
		if n := announced(100*time.Millisecond, good.MAC); n != addresses {
			t.Errorf("%d of %d addresses are announced beside a stuck link", n, addresses)
		}
		lan.stuck.Store(false)
		if n := announced(100*time.Millisecond, ourMAC); n != addresses {
			t.Errorf("%d of %d addresses are announced on the link that was stuck", n, addresses)
		}
	})
}

// TestStuckLinkIsReal: the same with a queue of the kernel that hardly moves. The bound is far above the time on an idle machine and far
// below the time that blocked writes take.
func TestStuckLinkIsReal(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newRealNetwork(t)
		nstest.Veth(t, n.node, "eth1", n.far, "eth1")
		n.node.Output("tc", "qdisc", "add", "dev", "eth1", "root", "tbf", "rate", "8bit", "burst", "2000", "limit", "100000000")
		r := realResponder(t)
		seen := make(map[netip.Addr]bool)
		done := make(chan struct{})
		watch(t, n.far, r.protocols[1], func(frame []byte) {
			if m, out := r.protocols[1].parse(frame, askerMAC); out == answered && m.claimed.IsValid() && !seen[m.claimed] {
				if seen[m.claimed] = true; len(seen) == 450 {
					close(done)
				}
			}
		})
		r.Set(Desired{Announcements: manyHere(500)})
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			t.Error("the good link waits for the stuck one")
		}
	})
}
