package layer2

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// text is a table as one reads it, with what it has of an older one.
func (t *addressTable) text(old *addressTable) (out []string) {
	for a, e := range t.entries.All() {
		before := old.entries.Of(a)
		out = append(out, fmt.Sprint(a, e.links, e.mac, e.current(), before == e, before != nil && before.status == e.status))
	}
	slices.SortFunc(t.handovers, netip.Addr.Compare)
	return append(out, fmt.Sprint(t.linkUses, t.releasedAt, t.handovers))
}

// TestTable: table after table, what is made of the one before is what is made of all announcements.
func TestTable(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		var d, before Desired
		old, at := newTable(d, d, &addressTable{}, false, time.Time{}), time.Unix(1e9, 0)
		for step := range 300 {
			at = at.Add(time.Duration(r.IntN(30)) * time.Second)
			a := netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(40))})
			one := &lb.Announcement{
				Address: a, Links: [][]string{nil, {"eth0"}, {"eth1", "eth0"}}[r.IntN(3)], Probe: r.IntN(2) == 0,
			}
			if r.IntN(4) == 0 {
				one.MAC = otherMAC
			}
			switch r.IntN(8) {
			case 0, 1, 2:
				d.Announcements = d.Announcements.Put(a, one)
			case 3:
				d.Announcements, d.Yield = d.Announcements.Without(a), d.Yield.Put(a, struct{}{})
			case 4:
				d.Announcements, d.Yield = d.Announcements.Without(a), d.Yield.Without(a)
			case 5:
				d.Owners = d.Owners.Put(a, "w2")
			case 6:
				d.Owners = d.Owners.Without(a)
			default:
				if e := old.entries.Of(a); e != nil && !e.transition(probing, owned) {
					e.transition(handingOver, released)
				}
			}
			whole := &addressTable{
				desired: old.desired, entries: old.entries, linkUses: old.linkUses, releasedAt: old.releasedAt,
				handovers: old.handovers,
			}
			whole.isOffered.Store(true)
			next := newTable(d, before, old, false, at)
			if got, want := next.text(old), newTable(d, Desired{}, whole, false, at).text(old); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, step %d: %q, want %q", seed, step, got, want)
			}
			if before = d; !next.entries.Same(old.entries) || r.IntN(2) == 0 {
				old = next
			}
		}
	}
}
