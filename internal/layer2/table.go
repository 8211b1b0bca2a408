package layer2

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// Desired is what a Responder is told, as a whole.
type Desired struct {
	// Announcements are the addresses to answer for.
	Announcements []lb.Announcement
	// Elsewhere are addresses that another node is to announce, sorted. One that
	// was answered here is answered until the other node is heard.
	Elsewhere []netip.Addr
	// Speakers are the MACs of the links of all speakers, this one's too: what they
	// say of an address is no conflict.
	Speakers map[link.MAC]bool
	// Owners are the MACs of the links from which another node is to announce an address,
	// where they are known. They are only compared with what is heard, and must not change any more.
	Owners map[netip.Addr][][6]byte
}

// table is the desired set, made for looking addresses up. It is never changed
// once made, so that readers need no lock; what changes of an address is its status.
type table struct {
	entries  map[netip.Addr]*entry
	speakers map[link.MAC]bool
	// anyLink: some address is restricted to no link.
	anyLink bool
	// named are the links that some address names.
	named map[string]bool
}

// entry is one address.
type entry struct {
	// links by name that answer for it; none means all usable ones.
	links []string
	// mac to answer with, zero for the link's own.
	mac link.MAC
	*status
}

// newTable takes what can be announced: one address given twice is answered on
// the links of both. What old knows of an address goes on, unless a lapse has
// made that worthless: then whatever was ours begins anew.
func newTable(d Desired, old *table, lapsed bool) *table {
	t := &table{
		entries: make(map[netip.Addr]*entry, len(d.Announcements)), speakers: d.Speakers, named: make(map[string]bool),
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
		t.handOver(old, d.Elsewhere)
	}
	for _, e := range t.entries {
		t.anyLink = t.anyLink || len(e.links) == 0
		for _, name := range e.links {
			t.named[name] = true
		}
	}
	return t
}

// next returns the status of an address that was set again, or a new one.
func (t *table) next(addr netip.Addr, a lb.Announcement, lapsed bool) *status {
	first := ours
	switch {
	case a.MAC != link.MAC{}:
		first = standing
	case a.Probe:
		first = probing
	}
	e := t.entries[addr]
	if e == nil {
		return newStatus(first)
	}
	is := e.is()
	switch {
	case (is == standing) != (first == standing):
	case is == ours && lapsed:
		first = ours
	case is == handing || is == gone:
		// It was announced, and comes back.
		if first == probing {
			first = ours
		}
	default:
		return e.status
	}
	return newStatus(first)
}

// handOver keeps what was answered and now is another node's to announce.
func (t *table) handOver(old *table, elsewhere []netip.Addr) {
	for addr, e := range old.entries {
		if t.entries[addr] != nil {
			continue
		}
		if _, found := slices.BinarySearchFunc(elsewhere, addr, netip.Addr.Compare); !found {
			continue
		}
		switch e.is() {
		case ours, standing:
			t.entries[addr] = &entry{links: e.links, mac: e.mac, status: newStatus(handing)}
		case handing:
			t.entries[addr] = e
		}
	}
}

// on returns the entry of an address if it concerns the link; usable is l.Usable().
func (t *table) on(addr netip.Addr, l *link.Link, usable bool) *entry {
	e := t.entries[addr]
	switch {
	case e == nil:
		return nil
	case len(e.links) == 0 && usable, len(e.links) > 0 && slices.Contains(e.links, l.Name):
		return e
	}
	return nil
}

// uses reports whether any address is to be answered on the link.
func (t *table) uses(l link.Link) bool {
	return t.anyLink && l.Usable() || t.named[l.Name] && l.CanAnnounce()
}

// equal reports whether both are the same to readers and schedule.
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

// changes counts what t has and old has not, and the other way round.
func (t *table) changes(old *table) (added, removed int) {
	for addr := range t.entries {
		if old.entries[addr] == nil {
			added++
		}
	}
	return added, len(old.entries) - (len(t.entries) - added)
}

// count returns how many addresses are in a phase.
func (t *table) count(p phase) int {
	n := 0
	for _, e := range t.entries {
		if e.is() == p {
			n++
		}
	}
	return n
}

// sorted returns the addresses by family, in order.
func (t *table) sorted() (out [families][]netip.Addr) {
	for addr := range t.entries {
		n := number(lb.FamilyOf(addr))
		out[n] = append(out[n], addr)
	}
	for _, addrs := range out {
		slices.SortFunc(addrs, netip.Addr.Compare)
	}
	return out
}
