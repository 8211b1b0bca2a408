package layer2

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// table is the desired set, made for looking addresses up. It is never changed
// once made, so that readers need no lock.
type table struct {
	// links by name that answer for the address; none means all usable ones.
	links map[netip.Addr][]string
	// anyLink: some address is restricted to no link.
	anyLink bool
	// named are the links that some address names.
	named map[string]bool
}

// newTable takes what can be announced: one address given twice is answered on
// the links of both.
func newTable(announcements []lb.Announcement) *table {
	t := &table{links: make(map[netip.Addr][]string, len(announcements)), named: make(map[string]bool)}
	for _, a := range announcements {
		addr := a.Address.Unmap().WithZone("")
		if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() {
			continue
		}
		names, seen := t.links[addr]
		switch {
		case len(a.Links) == 0, seen && len(names) == 0:
			t.links[addr] = nil
		default:
			names = slices.Concat(names, a.Links)
			slices.Sort(names)
			t.links[addr] = slices.Compact(names)
		}
	}
	for _, names := range t.links {
		t.anyLink = t.anyLink || len(names) == 0
		for _, name := range names {
			t.named[name] = true
		}
	}
	return t
}

// answers reports whether addr is to be answered on the link; usable is l.Usable().
func (t *table) answers(addr netip.Addr, l *link.Link, usable bool) bool {
	names, ok := t.links[addr]
	if !ok {
		return false
	}
	if len(names) == 0 {
		return usable
	}
	return slices.Contains(names, l.Name)
}

// uses reports whether any address is to be answered on the link.
func (t *table) uses(l link.Link) bool {
	return t.anyLink && l.Usable() || t.named[l.Name] && l.CanAnnounce()
}

// equal reports whether both answer the same.
func (t *table) equal(o *table) bool { return maps.EqualFunc(t.links, o.links, slices.Equal) }

// changes counts what t has and old has not, and the other way round.
func (t *table) changes(old *table) (added, removed int) {
	for addr := range t.links {
		if _, ok := old.links[addr]; !ok {
			added++
		}
	}
	return added, len(old.links) - (len(t.links) - added)
}
