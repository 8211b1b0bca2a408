package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// assignment returns what the Service finally holds and, if that is not all it
// requests, why.
func (a *assigner) assignment(s *subject) Assignment {
	out := a.holding(s)
	out.Reason, out.Message = a.explainAssignment(s, out)
	switch {
	case out.Reason == lb.ForeignAddress:
		if s.Renew {
			out.Record = append(out.Record, s.overwritten()...)
		}
		for had := range s.lost {
			// Of each family one is asked back.
			if !slices.ContainsFunc(
				out.Record,
				func(o lb.Origin) bool { return lb.FamilyOf(o.Address) == lb.FamilyOf(had.Address) },
			) {
				out.Awaits = append(out.Awaits, had)
			}
		}
	case out.Reason != lb.Assigned && !s.Renew:
		out.Awaits = s.lacks()
	}
	return out
}

func (a *assigner) holding(s *subject) Assignment {
	out := Assignment{Key: s.Key}
	for _, addr := range s.held {
		if !addr.IsValid() {
			continue
		}
		pool := ""
		if p := a.index.Find(addr); p != nil {
			pool = p.Name
		}
		out.Addresses, out.Pools = append(out.Addresses, addr), append(out.Pools, pool)
		if origin := a.origin(s, addr); origin != "" {
			out.Record = append(out.Record, lb.Origin{Address: addr, Pool: origin, Terms: a.provenTerms(s, addr)})
		}
	}
	return out
}

// origin returns the pool that the record names: the pool that the address came from, until that one is deleted and
// another pool has the address. Otherwise the address would be in no pool and unannounced once that other pool is cut.
func (a *assigner) origin(s *subject, addr netip.Addr) string {
	recorded, pool := s.Record.Of(addr).Pool, a.index.Find(addr)
	if pool != nil && !a.living[recorded] {
		return pool.Name
	}
	return recorded
}

// provenTerms returns the terms that the subject has proven not to clash on an address which it holds: the former ones
// while a holder declares ports that are not served, since no Service was compared with these.
func (a *assigner) provenTerms(s *subject, addr netip.Addr) string {
	unserved := func(o *subject) bool { return len(o.Unserved) > 0 }
	if s.loyal(addr) || !unserved(s) && !slices.ContainsFunc(a.holders[addr].services, unserved) {
		return s.digest()
	}
	return s.Record.Of(addr).Terms
}

func (a *assigner) explainAssignment(s *subject, has Assignment) (lb.Reason, string) {
	_, r := a.find(s)
	switch {
	case r != nil && r.reason == lb.ForeignAddress:
		return r.reason, r.message
	case r != nil && r.kept:
		return lb.AddressKept, fmt.Sprintf("%s until another can be had: %s", describe("keeps ", has), r.message)
	case r != nil && len(has.Addresses) == 0:
		return r.reason, r.message
	case r != nil && s.FamilyPolicy == lb.PreferDualStack && isShortage(r.reason):
		return lb.PartlyAssigned, fmt.Sprintf("%s; %s", describe("has ", has), r.message)
	case r != nil:
		return r.reason, fmt.Sprintf("%s; %s", describe("keeps ", has), r.message)
	}
	for _, addr := range has.Addresses {
		if why := a.unfit(s, addr); why != "" {
			return lb.AddressKept, fmt.Sprintf(
				"%s, although %s: to move, set holdfast.dev/renew",
				describe("keeps ", has),
				why,
			)
		}
	}
	return lb.Assigned, describe("has ", has) + a.explainSharing(s, has)
}

// explainSharing says of a Service with a sharing key whether that key decided about its address, or, where the Service
// holds the address alone, why the key did not.
func (a *assigner) explainSharing(s *subject, has Assignment) string {
	if s.SharingKey == "" {
		return ""
	}
	text := ""
	for _, addr := range has.Addresses {
		if len(a.holders[addr].services) > 1 {
			text += fmt.Sprintf("; its sharing key shares %s", addr)
			continue
		}
		i := slices.IndexFunc(
			s.sharedAddresses(lb.FamilyOf(addr)),
			func(other netip.Addr) bool { return other != addr },
		)
		if i < 0 {
			continue
		}
		other := s.sharedAddresses(lb.FamilyOf(addr))[i]
		if r := a.unshareable(s, other); r != nil {
			text += fmt.Sprintf("; it cannot share %s, %s", other, r.message)
			continue
		}
		text += fmt.Sprintf(
			"; its record comes before its sharing key, which %s has too: to share that, set holdfast.dev/addresses to it",
			other,
		)
	}
	return text
}

// unshareable returns why the subject may not share an address with its oldest holder, or clashes with another one; nil
// if nothing is known that speaks against it. It looks at no Service without the key, so that a Ledger need not.
func (a *assigner) unshareable(s *subject, addr netip.Addr) *refusal {
	t := a.holders[addr]
	if r := shareable(s, t.services[0], a.index.Find(addr)); r != nil {
		return r
	}
	return s.clash(t, func(*subject) bool { return false })
}

// unfit returns why a kept address would not be assigned to the Service now: by the kind of its pool, or because it
// belongs to the cluster.
func (a *assigner) unfit(s *subject, addr netip.Addr) string {
	pool := a.index.Find(addr)
	if pool == nil || s.Renew || slices.Contains(s.RequestedAddresses, addr) {
		return ""
	}
	if owner := pool.Withheld.Find(addr); owner != "" {
		return fmt.Sprintf("%s belongs to %s", addr, owner)
	}
	if why := pool.mismatch(s); why != "" {
		return fmt.Sprintf("pool %q %s", pool.Name, why)
	}
	return ""
}

// isShortage reports whether a refusal means only that a family is not available.
func isShortage(r lb.Reason) bool {
	switch r {
	case lb.NoPool,
		lb.NoFamily,
		lb.PoolExhausted,
		lb.QuotaExceeded,
		lb.Quarantined,
		lb.PortClash,
		lb.NotShareable,
		lb.SharingLimit:
		return true
	}
	return false
}

// describe returns the verb, if any, and what a subject has. All Services need it in each decision, hence no fmt.
func describe(verb string, has Assignment) string {
	text := append(make([]byte, 0, 128), verb...)
	for i, addr := range has.Addresses {
		if i > 0 {
			text = append(text, " and "...)
		}
		text = addr.AppendTo(text)
		if has.Pools[i] == "" {
			text = append(text, ", which is in no pool any more"...)
			continue
		}
		text = strconv.AppendQuote(append(text, " from pool "...), has.Pools[i])
	}
	return string(text)
}
