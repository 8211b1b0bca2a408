package plan

import (
	"net/netip"
	"slices"
)

// source is a node, and an advertisement by index.
type source struct {
	owner *node
	ad    int
}

// addSources adds the MACs from which another node announces an address: announcements from any other MAC are not
// as planned.
func (p *planner) addSources(a netip.Addr, owner *node, ads []int) {
	for _, ad := range ads {
		macs, had := p.macsOf(source{owner, ad}), p.plan.Sources[a]
		switch {
		case len(macs) == 0:
		case had == nil:
			p.plan.Sources[a] = macs // mostly the only advertisement; the slice is shared
		default:
			for _, mac := range macs {
				if !slices.Contains(had, mac) {
					had = append(slices.Clip(had), mac)
				}
			}
			p.plan.Sources[a] = had
		}
	}
}

// macsOf returns the MACs of the links on which a node announces what an advertisement selects.
func (p *planner) macsOf(from source) [][6]byte {
	macs, known := p.sources[from]
	if known {
		return macs
	}
	i := p.index(from.owner.Name)
	for _, l := range p.state.Links[from.owner.Name] {
		if p.announcedOn(i, []int{from.ad}, l) {
			macs = append(macs, l.MAC)
		}
	}
	p.sources[from] = macs
	return macs
}
