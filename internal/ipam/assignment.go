package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// assignment returns what the Service finally holds. If that is not all that it requests, the Reason and the Message
// say why.
func (a *assigner) assignment(s *subject) Assignment {
	out := a.holding(s)
	out.Reason, out.Message = a.explainAssignment(s, out)

	switch {
	case out.Reason == lb.ForeignAddress:
		if s.Renew {
			out.Record = append(out.Record, s.overwritten()...)
		}
		for origin := range s.lostOrigins {
			family := lb.FamilyOf(origin.Address)
			isSameFamily := func(o lb.Origin) bool { return lb.FamilyOf(o.Address) == family }
			if !slices.ContainsFunc(out.Record, isSameFamily) {
				out.Awaits = append(out.Awaits, origin)
			}
		}
	case out.Reason != lb.Assigned && !s.Renew:
		out.Awaits = s.awaitedOrigins()
	}
	return out
}

// holding returns the addresses that the subject holds, with their pools and its record.
func (a *assigner) holding(s *subject) Assignment {
	out := Assignment{Key: s.Key}
	addresses := make([]netip.Addr, 0, len(s.held))
	record := make(lb.Origins, 0, len(s.held))
	for _, addr := range s.held {
		if !addr.IsValid() {
			continue
		}

		pool := a.index.Find(addr)
		name := ""
		if pool != nil {
			name = pool.Name
		}
		addresses = append(addresses, addr)
		out.Pools = append(out.Pools, name)

		origin := a.origin(s, addr, pool)
		if origin != "" {
			record = append(record, lb.Origin{Address: addr, Pool: origin, Terms: a.provenTerms(s, addr)})
		}
	}

	out.Addresses = reuse(s.Addresses, addresses)
	out.Record = reuse(s.Record, record)
	return out
}

// reuse returns the wanted list: the present list if both are equal, as for most Services, else a copy.
func reuse[L ~[]T, T comparable](have, want L) L {
	isSame := len(want) > 0 && slices.Equal(have, want)
	if isSame {
		return slices.Clip(have)
	}
	return append(L(nil), want...)
}

// origin returns the pool that the record names: the pool that the address came from. Once that pool is being deleted
// and another pool has the address, it is the other pool. Otherwise the address would be in no pool, and not announced,
// after an edit of the other pool removes it.
func (a *assigner) origin(s *subject, addr netip.Addr, pool *supply) string {
	recorded := s.Record.Of(addr).Pool
	if pool != nil && !a.isActive[recorded] {
		return pool.Name
	}
	return recorded
}

// provenTerms returns the terms that the subject has proven not to clash with other holders of the address. These are
// the terms of the record while a holder declares ports that are not served, because those ports are not compared.
func (a *assigner) provenTerms(s *subject, addr netip.Addr) string {
	if s.hasRecordedTerms(addr) {
		return s.digest()
	}

	hasUnserved := func(o *subject) bool { return len(o.Unserved) > 0 }
	isCompared := !hasUnserved(s) && !slices.ContainsFunc(a.holders[addr].services, hasUnserved)
	if isCompared {
		return s.digest()
	}
	return s.Record.Of(addr).Terms
}

// explainAssignment returns the Reason and the Message of what a Service has.
func (a *assigner) explainAssignment(s *subject, has Assignment) (lb.Reason, string) {
	_, r := a.find(s)
	switch {
	case r != nil && r.reason == lb.ForeignAddress:
		return r.reason, r.message
	case r != nil && r.isKept:
		return lb.AddressKept, fmt.Sprintf("%s until another can be had: %s", describe("keeps ", has), r.message)
	case r != nil && len(has.Addresses) == 0:
		return r.reason, r.message
	case r != nil && s.FamilyPolicy == lb.PreferDualStack && isShortage(r.reason):
		return lb.PartlyAssigned, fmt.Sprintf("%s; %s", describe("has ", has), r.message)
	case r != nil:
		return r.reason, fmt.Sprintf("%s; %s", describe("keeps ", has), r.message)
	}

	for _, addr := range has.Addresses {
		if why := a.whyNotAssignable(s, addr); why != "" {
			const format = "%s, although %s: to move, set holdfast.dev/renew"
			return lb.AddressKept, fmt.Sprintf(format, describe("keeps ", has), why)
		}
	}
	return lb.Assigned, describe("has ", has) + a.explainSharing(s, has)
}

// explainSharing reports for a Service with a sharing key whether that key determined its address. If the Service holds
// the address alone, it explains why the key had no effect.
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

		shared := s.sharedAddresses(lb.FamilyOf(addr))
		i := slices.IndexFunc(shared, func(other netip.Addr) bool { return other != addr })
		if i < 0 {
			continue
		}
		other := shared[i]
		if r := a.whyNotShared(s, other); r != nil {
			text += fmt.Sprintf("; it cannot share %s, %s", other, r.message)
			continue
		}
		text += fmt.Sprintf("; its record comes before its sharing key, which %s has too: "+
			"to share that, set holdfast.dev/addresses to it", other)
	}
	return text
}

// whyNotShared returns the reason why the subject may not share an address with its oldest holder, or clashes with
// another holder; nil if none is known.
func (a *assigner) whyNotShared(s *subject, addr netip.Addr) *refusal {
	t := a.holders[addr]
	if r := checkShareable(s, t.services[0], a.index.Find(addr)); r != nil {
		return r
	}
	return s.checkPorts(t, func(*subject) bool { return false })
}

// whyNotAssignable returns the reason why a kept address would not be assigned to the Service today: its pool is of
// another kind, or the address belongs to the cluster.
func (a *assigner) whyNotAssignable(s *subject, addr netip.Addr) string {
	pool := a.index.Find(addr)
	isRequested := slices.Contains(s.RequestedAddresses, addr)
	if pool == nil || s.Renew || isRequested {
		return ""
	}

	if owner := pool.Withheld.Find(addr); owner != "" {
		return fmt.Sprintf("%s belongs to %s", addr, owner)
	}
	if why := pool.kindMismatch(s); why != "" {
		return fmt.Sprintf("pool %q %s", pool.Name, why)
	}
	return ""
}

// isShortage reports whether a refusal means only that a family is not available.
func isShortage(r lb.Reason) bool {
	switch r {
	case lb.NoPool, lb.NoFamily, lb.PoolExhausted, lb.QuotaExceeded, lb.Quarantined,
		lb.PortClash, lb.NotShareable, lb.SharingLimit:
		return true
	}
	return false
}

// describe returns the verb, if any, and the addresses of a subject. It does without fmt, because every Service needs
// it in each decision.
func describe(verb string, has Assignment) string {
	text := append(make([]byte, 0, 128), verb...)
	for i, addr := range has.Addresses {
		if i > 0 {
			text = append(text, " and "...)
		}
		text = addr.AppendTo(text)

		pool := has.Pools[i]
		if pool == "" {
			text = append(text, ", which is in no pool any more"...)
			continue
		}
		text = append(text, " from pool "...)
		text = appendQuoted(text, pool)
	}
	return string(text)
}

// appendQuoted is like strconv.AppendQuote, and fast for usual names.
func appendQuoted(text []byte, name string) []byte {
	for i := range len(name) {
		c := name[i]
		isPlain := ' ' <= c && c <= '~' && c != '"' && c != '\\'
		if !isPlain {
			return strconv.AppendQuote(text, name)
		}
	}

	text = append(text, '"')
	text = append(text, name...)
	return append(text, '"')
}
