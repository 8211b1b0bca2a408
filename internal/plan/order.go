package plan

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Staying returns the part of p that a node announces until the filter of next is in force, and whether that is less
// than p: what next leaves out is withdrawn before its ports close.
func (p Plan) Staying(next Plan) (rest Plan, less bool) {
	rest = p.only(func(a lb.Announcement) bool { return next.announces(a.Address) }, func(r lb.Route) bool { return next.advertises(r.Prefix) })
	rest.Yield = next.Yield // an address that moves is handed over, and its ports stay open here
	return rest, len(rest.Announcements)+len(rest.Routes) < len(p.Announcements)+len(p.Routes)
}

// Waiting returns the part of p that a node announces while the filter of the previous plan is still in force:
// addresses with source ranges wait if the previous plan did not attract traffic for them.
func (p Plan) Waiting(previous Plan) Plan {
	var ranged addresses
	for _, f := range p.Filter.Frontends { // ordered by address
		if f.HasRanges() {
			ranged = append(ranged, f.Address)
		}
	}
	return p.only(
		func(a lb.Announcement) bool { return previous.announces(a.Address) || !ranged.in(single(a.Address)) },
		func(r lb.Route) bool { return previous.advertises(r.Prefix) || !ranged.in(r.Prefix) })
}

// only returns the part of p that has some of its announcements and routes.
func (p Plan) only(announcement func(lb.Announcement) bool, route func(lb.Route) bool) Plan {
	p.Announcements = slices.DeleteFunc(slices.Clone(p.Announcements), func(a lb.Announcement) bool { return !announcement(a) })
	p.Routes = slices.DeleteFunc(slices.Clone(p.Routes), func(r lb.Route) bool { return !route(r) })
	return p
}

// Announced are the addresses that the node announces by ARP and NDP.
func (p Plan) Announced() map[netip.Addr]bool {
	out := make(map[netip.Addr]bool, len(p.Announcements))
	for _, a := range p.Announcements {
		out[a.Address] = true
	}
	return out
}

func (p Plan) announces(a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(p.Announcements, a, func(have lb.Announcement, a netip.Addr) int { return have.Address.Compare(a) })
	return found
}

func (p Plan) advertises(prefix netip.Prefix) bool {
	_, found := slices.BinarySearchFunc(p.Routes, prefix, func(have lb.Route, p netip.Prefix) int { return comparePrefix(have.Prefix, p) })
	return found
}
