package plan

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Staying returns what a node announces of p until the filter of next is in force,
// and whether that is less: what goes is withdrawn before its ports close.
func (p Plan) Staying(next Plan) (stays Plan, less bool) {
	before := len(p.Announcements) + len(p.Routes)
	p.Announcements = slices.DeleteFunc(slices.Clone(p.Announcements), func(a lb.Announcement) bool { return !next.announces(a.Address) })
	p.Yield = next.Yield // what moves is handed over, and its ports stay open here
	p.Routes = slices.DeleteFunc(slices.Clone(p.Routes), func(r lb.Route) bool { return !next.advertises(r.Prefix) })
	return p, len(p.Announcements)+len(p.Routes) < before
}

// Waiting returns what a node announces of p while the filter is still that of
// before: what has ranges, and did not attract traffic then, waits. Nothing else does.
func (p Plan) Waiting(before Plan) Plan {
	ranged := map[netip.Addr]bool{}
	for _, d := range p.Filter.Frontends {
		if d.HasRanges() {
			ranged[d.Address] = true
		}
	}
	p.Announcements = slices.DeleteFunc(slices.Clone(p.Announcements), func(a lb.Announcement) bool {
		return ranged[a.Address] && !before.announces(a.Address)
	})
	p.Routes = slices.DeleteFunc(slices.Clone(p.Routes), func(r lb.Route) bool {
		if before.advertises(r.Prefix) {
			return false
		}
		for a := range ranged {
			if r.Prefix.Contains(a) {
				return true
			}
		}
		return false
	})
	return p
}

func (p Plan) announces(a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(p.Announcements, a, func(have lb.Announcement, a netip.Addr) int { return have.Address.Compare(a) })
	return found
}

func (p Plan) advertises(prefix netip.Prefix) bool {
	_, found := slices.BinarySearchFunc(p.Routes, prefix, func(have lb.Route, p netip.Prefix) int { return comparePrefix(have.Prefix, p) })
	return found
}
