package layer2

import (
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// stateCache has the last result of State.
type stateCache struct {
	// version counts the changes of statuses.
	version atomic.Uint64
	last    atomic.Pointer[cachedState]
}

// cachedState is a result of State, with the inputs that it was made of.
type cachedState struct {
	inputs stateInputs
	state  lb.Layer2
}

// stateInputs are all that a State depends on.
type stateInputs struct {
	version uint64
	// applied is the table that the ports reflect, and table the present one.
	applied, table *addressTable
	ports          *map[int]*linkPort
	refusals       *[]refusedLink
}

// State returns the addresses that were set and the links that answer for them. The caller must not change the result,
// which is the same as before if nothing changed.
func (r *Responder) State() lb.Layer2 {
	// In this order, so that the ports are the ports of the applied table or of a later one, and a change meanwhile
	// appears in the next State.
	in := stateInputs{
		version:  r.state.version.Load(),
		applied:  r.published.table.Load(),
		table:    r.table.Load(),
		ports:    r.published.ports.Load(),
		refusals: r.published.refusals.Load(),
	}

	last := r.state.last.Load()
	if last != nil && last.inputs == in {
		return last.state
	}

	s := in.state()
	s.Refused = r.Refused()
	r.state.last.Store(&cachedState{inputs: in, state: s})

	return s
}

// state makes a State, without the refused links.
func (in stateInputs) state() (s lb.Layer2) {
	var links []*portLink
	for _, p := range *in.ports {
		links = append(links, p.link.Load())
	}

	usedLinks := make(map[string]bool)
	s.Addresses = make([]lb.AddressState, 0, in.table.entries.Len())
	for addr, e := range in.table.entries.All() {
		if e.current() == released {
			continue
		}

		s.Addresses = append(s.Addresses, in.addressState(addr, e, links, usedLinks))
	}

	s.Links = slices.Sorted(maps.Keys(usedLinks))

	return s
}

// addressState returns the state of one address. It adds the names of the links for the address to usedLinks.
func (in stateInputs) addressState(
	addr netip.Addr,
	e *tableEntry,
	links []*portLink,
	usedLinks map[string]bool,
) lb.AddressState {
	phase := e.current()
	a := lb.AddressState{Address: addr, Phase: phase.String()}
	for _, c := range *e.conflicts.Load() {
		a.Conflicts = append(a.Conflicts, c.Conflict)
	}

	hasLink := false
	for _, l := range links {
		if in.table.entryOn(addr, &l.Interface) == nil {
			continue
		}

		hasLink = true
		usedLinks[l.Name] = true
		c, found := e.conflict(l.Name)
		if !found || c.phase == owned {
			a.Links = append(a.Links, l.Name)
		}
	}

	slices.Sort(a.Links)
	for _, l := range *in.refusals {
		if in.table.entryOn(addr, &l.Interface) != nil {
			a.Refused = append(a.Refused, l.err)
		}
	}

	a.Answered = phase == owned && len(a.Links) > 0
	// Without a link the address is pending only while the links of a new table were not read yet.
	isLinkPending := !hasLink && in.applied != in.table
	isProbePending := phase == probing && len(a.Links) > 0
	a.Pending = isLinkPending || isProbePending

	return a
}
