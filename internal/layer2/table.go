package layer2

import (
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Desired is the whole desired state of a Responder.
type Desired struct {
	// Announcements are the addresses to answer for.
	Announcements lb.Map[netip.Addr, *lb.Announcement]
	// Yield are addresses that another node owns. If one was answered here,
	// it is answered until the new owner is heard.
	Yield lb.Map[netip.Addr, struct{}]
	// Speakers are the MACs of the links of all speakers, including this one: their claims
	// are no conflicts.
	Speakers map[lb.MAC]bool
	// Owners are the nodes that announce addresses: who asks for one of another node is a machine worth knowing.
	Owners lb.Map[netip.Addr, string]
}

// table is the desired set, prepared for lookups. It is immutable, so readers need no
// lock; only the status of an address changes.
type table struct {
	// of is what the table was made of.
	of      Desired
	entries lb.Map[netip.Addr, *entry]
	// named counts the addresses that name each link.
	named map[string]int
	// left is when addresses were taken from us that no machine has since, as far as we know.
	left map[netip.Addr]time.Time
	// leaves are the addresses that are answered for only until their new owner is heard; offered: others too, since
	// Offer.
	leaves  []netip.Addr
	offered atomic.Bool
}

// leftTime is for how long an address that was ours counts as free when it comes back: its Service had no endpoint for
// a moment.
const leftTime = time.Minute

// entry is one address.
type entry struct {
	// links by name that answer for it; empty means all usable ones.
	links []string
	// mac to answer with, zero for the link's own.
	mac lb.MAC
	*status
}

// newTable makes a table of what can be announced: of the old one, with what changed since before was desired. Statuses
// continue, except after a lapse: then all our addresses start from the beginning.
func newTable(d, before Desired, old *table, lapsed bool, now time.Time) *table {
	t := &table{of: d, named: make(map[string]int), left: make(map[netip.Addr]time.Time)}
	maps.Copy(t.named, old.named)
	at := slices.Clone(old.leaves)
	if lapsed || old.offered.Load() {
		at = slices.AppendSeq(slices.Collect(old.entries.Keys()), d.Announcements.Keys())
	} else {
		before.Announcements.Changes(d.Announcements, func(a netip.Addr, _, _ *lb.Announcement, _, _ bool) { at = append(at, a) })
	}

	t.entries = old.entries.With(slices.Values(at), func(a netip.Addr) (*entry, bool) {
		e := t.entry(a, old, lapsed)
		return e, e != nil
	})

	old.entries.Changes(t.entries, func(a netip.Addr, before, e *entry, had, has bool) {
		if had {
			t.name(before.links, -1)
		}

		if has {
			t.name(e.links, 1)
		}
	})

	if !lapsed {
		t.leave(old, now)
	}

	return t
}

// entry returns the entry of an address, the old one if it is the same; nil for none.
func (t *table) entry(a netip.Addr, old *table, lapsed bool) *entry {
	before, one := old.entries.Of(a), t.of.Announcements.Of(a)
	switch {
	case one != nil && a.IsValid() && !a.IsUnspecified() && !a.IsMulticast():
		e := &entry{slices.Sorted(slices.Values(one.Links)), one.MAC, old.next(a, *one, lapsed)}
		if e.links = slices.Compact(e.links); before != nil &&
			before.status == e.status &&
			before.mac == e.mac &&
			slices.Equal(before.links, e.links) {
			return before
		}
		return e
	case before == nil || lapsed || !t.of.Yield.Has(a):
		return nil
	}

	// It was answered here and belongs to another node.
	switch before.is() {
	case ours, standing, offered:
		before = &entry{links: before.links, mac: before.mac, status: before.successor(handing)}
	case handing:
	default:
		return nil
	}

	t.leaves = append(t.leaves, a)
	return before
}

// name counts addresses that name links.
func (t *table) name(links []string, n int) {
	for _, l := range links {
		if t.named[l] += n; t.named[l] == 0 {
			delete(t.named, l)
		}
	}
}

// next returns the status of an address that was set before, or a new one.
func (t *table) next(addr netip.Addr, a lb.Announcement, lapsed bool) *status {
	first := ours
	switch {
	case a.MAC != lb.MAC{}:
		first = standing
	case a.Probe:
		first = probing
	}

	e := t.entries.Of(addr)
	if e == nil {
		s := newStatus(first)
		s.left = t.left[addr]
		return s
	}

	switch p := e.is(); {
	case (p == standing) != (first == standing):
		return newStatus(first)
	case p == ours && lapsed:
		first = ours
	case p == handing || p == offered || p == gone:
		// It was announced, and comes back.
		if first == probing {
			first = ours
		}
	default:
		return e.status
	}

	return e.successor(first)
}

// leave notes which addresses were ours without a conflict, and have no owner now.
func (t *table) leave(old *table, now time.Time) {
	free := func(addr netip.Addr) bool { return !t.entries.Has(addr) && !t.elsewhere(addr) }
	for addr, at := range old.left {
		if free(addr) && now.Sub(at) < leftTime {
			t.left[addr] = at
		}
	}

	for _, addr := range old.entries.Beyond(t.entries) {
		if e := old.entries.Of(addr); free(addr) && e.is() == ours && len(*e.conflicts.Load()) == 0 {
			t.left[addr] = now
		}
	}
}

// on returns the entry of an address if it concerns the link.
func (t *table) on(addr netip.Addr, l *lb.Interface) *entry {
	e := t.entries.Of(addr)
	switch {
	case e == nil:
		return nil
	case len(e.links) == 0 && l.Usable(), len(e.links) > 0 && slices.Contains(e.links, l.Name):
		return e
	}

	return nil
}

// in returns the addresses in one of the phases handing and offered.
func (t *table) in(p phase) (out []netip.Addr) {
	of := slices.Values(t.leaves)
	if t.offered.Load() {
		of = t.entries.Keys()
	}

	for addr := range of {
		if t.entries.Of(addr).is() == p {
			out = append(out, addr)
		}
	}

	return out
}

// elsewhere reports whether another node announces an address.
func (t *table) elsewhere(addr netip.Addr) bool { return t.of.Owners.Has(addr) && !t.entries.Has(addr) }
