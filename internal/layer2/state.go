package layer2

import (
	"maps"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// State returns the addresses that were set and the links that answer for them.
func (r *Responder) State() lb.Layer2 {
	// In this order, so that the ports are those of the followed table or of a later one.
	followed, t := r.followed.Load(), r.table.Load()
	var links []*attached
	used := make(map[string]bool)
	var s lb.Layer2
	for _, p := range *r.ports.Load() {
		l := p.link.Load()
		links = append(links, l)
	}
	s.Refused = r.Refused()
	refusals := *r.refusals.Load()
	s.Addresses = make([]lb.AddressState, 0, len(t.entries))
	for addr, e := range t.entries {
		phase := e.is()
		if phase == gone {
			continue
		}
		a := lb.AddressState{Address: addr, Phase: phase.String()}
		for _, c := range *e.conflicts.Load() {
			a.Conflicts = append(a.Conflicts, c.Conflict)
		}
		suitable := false
		for _, l := range links {
			if t.on(addr, &l.Interface) != nil {
				suitable = true
				used[l.Name] = true
				if c, found := e.conflict(l.Name); !found || c.phase == ours {
					a.Links = append(a.Links, l.Name)
				}
			}
		}
		slices.Sort(a.Links)
		for _, l := range refusals {
			if t.on(addr, &l.Interface) != nil {
				a.Refused = append(a.Refused, l.err)
			}
		}
		a.Answered = phase == ours && len(a.Links) > 0
		// Without a link the address is pending only while the links of a new table were not read yet.
		a.Pending = !suitable && followed != t || phase == probing && len(a.Links) > 0
		s.Addresses = append(s.Addresses, a)
	}
	s.Links = slices.Sorted(maps.Keys(used))
	slices.SortFunc(s.Addresses, func(a, b lb.AddressState) int { return a.Address.Compare(b.Address) })
	return s
}
