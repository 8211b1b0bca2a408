package layer2

import (
	"maps"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// seen is a result of State, and what that depends on.
type seen struct {
	basis
	state lb.Layer2
}

type basis struct {
	version         uint64
	followed, table *table
	ports           *map[int]*port
	refusals        *[]refusal
}

// State returns the addresses that were set and the links that answer for them. The caller must not change the result,
// which is the same as before if nothing changed.
func (r *Responder) State() lb.Layer2 {
	// In this order, so that the ports are those of the followed table or of a later one, and what changes meanwhile is
	// seen next time.
	of := basis{
		version:  r.version.Load(),
		followed: r.followed.Load(),
		table:    r.table.Load(),
		ports:    r.ports.Load(),
		refusals: r.refusals.Load(),
	}
	if last := r.seen.Load(); last != nil && last.basis == of {
		return last.state
	}

	s := r.state(of)
	r.seen.Store(&seen{of, s})
	return s
}

func (r *Responder) state(of basis) (s lb.Layer2) {
	followed, t, refusals := of.followed, of.table, *of.refusals
	var links []*attached
	used := make(map[string]bool)
	for _, p := range *of.ports {
		links = append(links, p.link.Load())
	}

	s.Refused = r.Refused()
	s.Addresses = make([]lb.AddressState, 0, t.entries.Len())
	for addr, e := range t.entries.All() {
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
	return s
}
