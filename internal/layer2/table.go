package layer2

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Desired is the whole desired state of a Responder.
type Desired struct {
	// Announcements are the addresses to answer for.
	Announcements []lb.Announcement
	// Yield are addresses that another node owns, sorted. If one was answered here,
	// it is answered until the new owner is heard.
	Yield []netip.Addr
	// Speakers are the MACs of the links of all speakers, including this one: their claims
	// are no conflicts.
	Speakers map[lb.MAC]bool
	// Owners are the nodes that announce addresses: who asks for one of another node is a machine worth knowing. The caller must
	// not change them afterwards.
	Owners map[netip.Addr]string
}

// same reports whether both are the same slices and maps.
func (d Desired) same(o Desired) bool {
	return lb.Same(d.Announcements, o.Announcements) && lb.Same(d.Yield, o.Yield) && lb.SameMap(d.Speakers, o.Speakers) && lb.SameMap(d.Owners, o.Owners)
}

// table is the desired set, prepared for lookups. It is immutable, so readers need no
// lock; only the status of an address changes.
type table struct {
	entries  map[netip.Addr]*entry
	speakers map[lb.MAC]bool
	owners   map[netip.Addr]string
	// named are the links that some address names.
	named map[string]bool
	// left is when addresses were taken from us that no machine has since, as far as we know.
	left map[netip.Addr]time.Time
	// leaves: some addresses are answered for only until their new owner is heard; offered: others too, since Offer.
	leaves  bool
	offered atomic.Bool
}

// leftTime is for how long an address that was ours counts as free when it comes back: its Service had no endpoint for a moment.
const leftTime = time.Minute

// entry is one address.
type entry struct {
	// links by name that answer for it; empty means all usable ones.
	links []string
	// mac to answer with, zero for the link's own.
	mac lb.MAC
	*status
}

// newTable makes a table of what can be announced. An address given twice is answered on
// the links of both. Statuses of the old table continue, except after a lapse: then all
// our addresses start from the beginning.
func newTable(d Desired, old *table, lapsed bool, now time.Time) *table {
	t := &table{
		entries: make(map[netip.Addr]*entry, len(d.Announcements)), speakers: d.Speakers, owners: d.Owners,
		named: make(map[string]bool), left: make(map[netip.Addr]time.Time),
	}
	for _, a := range d.Announcements {
		addr := a.Address.Unmap().WithZone("")
		if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() {
			continue
		}
		e, seen := t.entries[addr]
		switch {
		case !seen:
			e = &entry{links: slices.Clone(a.Links), mac: a.MAC, status: old.next(addr, a, lapsed)}
			t.entries[addr] = e
		case len(a.Links) == 0 || len(e.links) == 0:
			e.links = nil
		default:
			e.links = append(e.links, a.Links...)
		}
		slices.Sort(e.links)
		e.links = slices.Compact(e.links)
	}
	if !lapsed {
		t.handOver(old, d.Yield)
		t.leave(old, now)
	}
	for _, e := range t.entries {
		for _, name := range e.links {
			t.named[name] = true
		}
	}
	return t
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
	e := t.entries[addr]
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

// handOver keeps addresses that were answered here and now belong to another node.
func (t *table) handOver(old *table, elsewhere []netip.Addr) {
	for addr, e := range old.entries {
		if t.entries[addr] != nil {
			continue
		}
		if _, found := slices.BinarySearchFunc(elsewhere, addr, netip.Addr.Compare); !found {
			continue
		}
		switch e.is() {
		case ours, standing, offered:
			t.entries[addr], t.leaves = &entry{links: e.links, mac: e.mac, status: e.successor(handing)}, true
		case handing:
			t.entries[addr], t.leaves = e, true
		}
	}
}

// leave notes which addresses were ours without a conflict, and have no owner now.
func (t *table) leave(old *table, now time.Time) {
	free := func(addr netip.Addr) bool { return t.entries[addr] == nil && !t.elsewhere(addr) }
	for addr, at := range old.left {
		if free(addr) && now.Sub(at) < leftTime {
			t.left[addr] = at
		}
	}
	for addr, e := range old.entries {
		if free(addr) && e.is() == ours && len(*e.conflicts.Load()) == 0 {
			t.left[addr] = now
		}
	}
}

// on returns the entry of an address if it concerns the link.
func (t *table) on(addr netip.Addr, l *lb.Interface) *entry {
	e := t.entries[addr]
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
	if !t.leaves && !t.offered.Load() {
		return nil // as mostly
	}
	for addr, e := range t.entries {
		if e.is() == p {
			out = append(out, addr)
		}
	}
	return out
}

// equal reports whether both are equivalent for readers and schedule.
func (t *table) equal(o *table) bool {
	if len(t.entries) != len(o.entries) {
		return false
	}
	for addr, e := range t.entries {
		before := o.entries[addr]
		if before == nil || e.status != before.status || e.mac != before.mac || !slices.Equal(e.links, before.links) {
			return false
		}
	}
	return true
}

// changes counts the addresses that only t has, and those that only old has.
func (t *table) changes(old *table) (added, removed int) {
	for addr := range t.entries {
		if old.entries[addr] == nil {
			added++
		}
	}
	return added, len(old.entries) - (len(t.entries) - added)
}

// elsewhere reports whether another node announces an address.
func (t *table) elsewhere(addr netip.Addr) bool {
	_, planned := t.owners[addr]
	return planned && t.entries[addr] == nil
}

// sorted returns the addresses of all nodes by protocol, in order.
func (t *table) sorted() (out [kinds][]netip.Addr) {
	add := func(addr netip.Addr) {
		n := number(lb.FamilyOf(addr))
		out[n] = append(out[n], addr)
	}
	for addr := range t.entries {
		add(addr)
	}
	for addr := range t.owners {
		if t.elsewhere(addr) {
			add(addr)
		}
	}
	for _, addrs := range out {
		slices.SortFunc(addrs, netip.Addr.Compare)
	}
	return out
}
