package layer2

import (
	"net/netip"
	"slices"
)

// State is the present state of a Responder.
type State struct {
	// Links in use, by name, sorted.
	Links []string
	// Refused are the links on which this node cannot answer.
	Refused []Refusal
	// Addresses in order.
	Addresses []AddressState
}

// AddressState is an address with the links on which it is answered.
type AddressState struct {
	Address netip.Addr
	// Links by name, sorted, without those on which another machine was first; empty while no suitable link exists.
	Links []string
	// Refused are the errors of links that should answer and cannot.
	Refused []string
	// Opening: there is none because the links were not read yet.
	Opening bool
	// Phase is that of all Links.
	Phase Phase
	// Conflicts are the machines that have it too, at most one on a link, by link.
	Conflicts []Conflict
}

// Answered reports whether this node answers for the address as its owner.
func (a AddressState) Answered() bool { return a.Phase == Ours && len(a.Links) > 0 }

// Pending reports whether it is still unknown if and where the address may be announced.
func (a AddressState) Pending() bool {
	return a.Opening || a.Phase == Probing && len(a.Links) > 0
}

// State returns the addresses that were set and the links that answer for them.
func (r *Responder) State() State {
	// In this order, so that the ports are those of the followed table or of a later one.
	followed, t := r.followed.Load(), r.table.Load()
	var links []*attached
	var s State
	for _, p := range *r.ports.Load() {
		l := p.link.Load()
		links = append(links, l)
		s.Links = append(s.Links, l.Name)
	}
	slices.Sort(s.Links)
	s.Refused = r.Refused()
	refusals := *r.refusals.Load()
	s.Addresses = make([]AddressState, 0, len(t.entries))
	for addr, e := range t.entries {
		a := AddressState{Address: addr, Phase: e.is(), Conflicts: slices.Clone(*e.conflicts.Load())}
		if a.Phase == gone {
			continue
		}
		suitable := false
		for _, l := range links {
			if t.on(addr, &l.Link, l.usable) != nil {
				suitable = true
				if c, found := e.conflict(l.Name); !found || c.phase == Ours {
					a.Links = append(a.Links, l.Name)
				}
			}
		}
		slices.Sort(a.Links)
		for _, l := range refusals {
			if t.on(addr, &l.Link, l.usable) != nil {
				a.Refused = append(a.Refused, l.err)
			}
		}
		a.Opening = !suitable && followed != t
		s.Addresses = append(s.Addresses, a)
	}
	slices.SortFunc(s.Addresses, func(a, b AddressState) int { return a.Address.Compare(b.Address) })
	return s
}
