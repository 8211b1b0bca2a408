package layer2

import "net/netip"

// Handing returns the addresses that are answered here only because their new owner was not heard yet.
func (r *Responder) Handing() []netip.Addr { return r.table.Load().in(handing) }

// Offer has this node answer for what it has only until another speaker is heard to have it. It is for a caller whose
// Set does not come, may overlap with that and be repeated, and holds until the next Set.
func (r *Responder) Offer() {
	for t := (*table)(nil); t != r.table.Load(); {
		t = r.table.Load()
		t.offered.Store(true)
		for _, e := range t.entries.All() {
			if e.become(ours, offered) || e.become(standing, offered) {
				r.changed()
			}
		}
	}
}

// Offered returns the addresses that are answered here only because no other speaker was heard to have them.
func (r *Responder) Offered() []netip.Addr { return r.table.Load().in(offered) }

// Owns reports which of the addresses this node owns: it answers for them with a valid lease, and has announced them to
// all neighbours. Of an asker that leaves them to this node neighbours may have learned until now, so they are
// announced again.
func (r *Responder) Owns(addrs []netip.Addr, leaves bool) []bool {
	out := make([]bool, len(addrs))
	if !r.lease.valid() {
		return out
	}

	t := r.table.Load()
	for i, addr := range addrs {
		e := t.entries.Of(addr)
		out[i] = e != nil && e.is() == ours && e.announced.Load()
		if out[i] && leaves {
			r.notify(notice{addr: addr, handover: true})
		}
	}

	return out
}

// Owned ends the handover of addresses that another speaker says it owns.
func (r *Responder) Owned(addrs []netip.Addr) {
	t := r.table.Load()
	for _, addr := range addrs {
		if e := t.entries.Of(addr); e != nil {
			r.heard(e)
		}
	}
}

// heard ends the handover, or the offer, of an address whose new owner was heard.
func (r *Responder) heard(e *entry) {
	if e.become(handing, gone) || e.become(offered, gone) {
		r.version.Add(1)
		r.counts.handovers[heard].Add(1)
		r.Kick()
	}
}
