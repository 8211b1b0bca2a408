package layer2

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestDrainedThenPoweredOff: a node with 10,000 addresses is drained, and powered off as soon as it has handed over the last of
// them. Speakers do not hear each other's frames, as on a private VLAN, and ask as the speaker does. A neighbour that asks
// nothing of its own accord then knows the new owner of each address.
func TestDrainedThenPoweredOff(t *testing.T) {
	const addresses, perQuestion, every = 10_000, 2048, 200 * time.Millisecond
	other := eth0
	other.MAC = otherMAC
	synctest.Test(t, func(t *testing.T) {
		there, here := newFakeLAN(eth0), newFakeLAN(other)
		former, owner := there.responder(), here.responder()
		defer run(t, former)()
		defer run(t, owner)()
		var moved []lb.Announcement
		var yield []netip.Addr
		for a4, a6 := netip.MustParseAddr("10.1.0.0"), v6; len(moved) < addresses; a4, a6 = a4.Next(), a6.Next() {
			moved = append(moved, lb.Announcement{Address: a4}, lb.Announcement{Address: a6})
			yield = append(yield, a4, a6)
		}
		slices.SortFunc(yield, netip.Addr.Compare)
		speakers := map[lb.MAC]bool{ourMAC: true, otherMAC: true}
		former.Set(Desired{Announcements: moved, Speakers: speakers})
		synctest.Wait()
		owner.Set(Desired{Announcements: moved, Speakers: speakers})
		former.Set(Desired{Yield: yield, Speakers: speakers})
		for turns := 0; ; turns++ {
			left := former.Handing()
			if len(left) == 0 {
				t.Logf("handed over after %v", time.Duration(turns)*every)
				break
			}
			left = left[:min(perQuestion, len(left))]
			var owned []netip.Addr
			for i, owns := range owner.Owns(left, true) {
				if owns {
					owned = append(owned, left[i])
				}
			}
			former.Owned(owned)
			time.Sleep(every)
		}
		known := make(map[netip.Addr]bool, addresses)
		for len(here.out) > 0 {
			frame := <-here.out
			proto := owner.protocols[0]
			if frame[offEtherType] == 0x86 {
				proto = owner.protocols[1]
			}
			if m, out := proto.parse(frame, ourMAC); out == answered && m.mac == otherMAC {
				known[m.claimed] = true
			}
		}
		if unheard := former.counts.handovers[unheard].Load(); len(known) != addresses || unheard != 0 {
			t.Errorf("the neighbour knows %d new owners of %d; %d addresses were left without one", len(known), addresses, unheard)
		}
	})
}
