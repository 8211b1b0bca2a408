package layer2

import (
	"net/netip"
	"slices"
)

// State is what a Responder does at the moment.
type State struct {
	// Links in use, by name, sorted.
	Links []string
	// Addresses in order.
	Addresses []AddressState
}

// AddressState is an address and where it is answered.
type AddressState struct {
	Address netip.Addr
	// Links by name, sorted; none while no link that may answer is there.
	Links []string
}

// State returns the addresses that were set and the links that answer for them.
func (r *Responder) State() State {
	t := r.table.Load()
	var links []*attached
	var s State
	for _, p := range *r.ports.Load() {
		l := p.link.Load()
		links = append(links, l)
		s.Links = append(s.Links, l.Name)
	}
	slices.Sort(s.Links)
	s.Addresses = make([]AddressState, 0, len(t.links))
	for addr := range t.links {
		a := AddressState{Address: addr}
		for _, l := range links {
			if t.answers(addr, &l.Link, l.usable) {
				a.Links = append(a.Links, l.Name)
			}
		}
		slices.Sort(a.Links)
		s.Addresses = append(s.Addresses, a)
	}
	slices.SortFunc(s.Addresses, func(a, b AddressState) int { return a.Address.Compare(b.Address) })
	return s
}
