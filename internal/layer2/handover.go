package layer2

import "net/netip"

// HandingOver returns the addresses that this node answers for only because it has not heard their new owner yet.
func (r *Responder) HandingOver() []netip.Addr {
	return r.table.Load().addressesIn(handingOver)
}

// Offer makes this node answer for its addresses only until it hears another speaker that has them. It is for a caller
// that has no plan for Set. It may overlap with Set, may be repeated, and holds until the next Set.
func (r *Responder) Offer() {
	for offeredTable := (*addressTable)(nil); offeredTable != r.table.Load(); {
		offeredTable = r.table.Load()
		offeredTable.isOffered.Store(true)
		for _, e := range offeredTable.entries.All() {
			if e.transition(owned, offered) || e.transition(standingIn, offered) {
				r.markChanged()
			}
		}
	}
}

// Offered returns the addresses that this node answers for only because it has not heard another speaker that has them.
func (r *Responder) Offered() []netip.Addr {
	return r.table.Load().addressesIn(offered)
}

// Owns reports for each of the addresses whether this node owns it: it answers for the address with a valid lease, and
// has announced it to all neighbours. leaves reports that the asking speaker leaves them to this node. Neighbours may
// have learned that speaker's MAC until then, so this node announces them again.
func (r *Responder) Owns(addrs []netip.Addr, leaves bool) []bool {
	owns := make([]bool, len(addrs))
	if !r.lapses.isValid() {
		return owns
	}

	t := r.table.Load()
	for i, addr := range addrs {
		e := t.entries.Of(addr)
		owns[i] = e != nil && e.current() == owned && e.isAnnounced.Load()
		if owns[i] && leaves {
			r.notify(notice{addr: addr, isHandover: true})
		}
	}

	return owns
}

// EndHandovers ends the handover of addresses that another speaker reports as its own.
func (r *Responder) EndHandovers(addrs []netip.Addr) {
	t := r.table.Load()
	for _, addr := range addrs {
		e := t.entries.Of(addr)
		if e != nil {
			r.endHandover(e)
		}
	}
}

// endHandover ends the handover, or the offer, of an address whose new owner was heard.
func (r *Responder) endHandover(e *tableEntry) {
	if e.transition(handingOver, released) || e.transition(offered, released) {
		r.state.version.Add(1)
		r.counters.handovers[handoverHeard].Add(1)
		r.Kick()
	}
}
