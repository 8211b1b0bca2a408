package config

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// maxRecorded bounds the externalIPs that a pool records.
const maxRecorded = 64

// externalRecords are what the statuses of all pools say of externalIPs.
type externalRecords struct {
	// seen are the ranges in which the controller looked for them.
	seen []lb.Range
	// kept are those that were there when it did.
	kept map[serviceAddress]bool
}

// guard reads what the pools record of externalIPs, and gives each pool the ranges that are not guarded: what the
// controller has not seen yet, and what it recorded. What one pool saw another one does not see first: ranges move
// between pools.
func guard(pools []*pool, objects []*v1beta1.IPAddressPool) externalRecords {
	known := externalRecords{kept: map[serviceAddress]bool{}}
	entries := map[string][]lb.Range{}
	for _, p := range pools {
		entries[p.Name] = p.entries
		p.Guarded = lb.Joined(p.entries)
	}
	var open []lb.Range
	for _, o := range objects {
		// A controller that recorded no ranges had all of them closed.
		if len(o.Status.Guarded) == 0 && len(o.Status.Conditions) > 0 {
			known.seen = append(known.seen, entries[o.Name]...)
		}
		for _, text := range o.Status.Guarded {
			if r, _, err := parseRange(text); err == nil {
				known.seen = append(known.seen, r)
			}
		}
		for _, e := range o.Status.ExternalIPs {
			if a, err := parseAddr(e.Address); err == nil {
				known.kept[serviceAddress{a, lb.ParseKey(e.Service)}] = true
				open = append(open, lb.Range{From: a, To: a})
			}
		}
	}
	known.seen, open = lb.Joined(known.seen), lb.Joined(open)
	for _, p := range pools {
		p.Unguarded = lb.Subtract(p.Ranges, lb.Subtract(known.seen, open))
	}
	return known
}

// sees reports whether the controller looked for externalIPs at the address.
func (k *externalRecords) sees(a netip.Addr) bool {
	i, _ := slices.BinarySearchFunc(k.seen, a, func(r lb.Range, a netip.Addr) int { return r.To.Compare(a) })
	return i < len(k.seen) && k.seen[i].Contains(a)
}

// withholdExternalIPs records the externalIPs that a pool covers for the first time, and keeps those that are recorded,
// while their Services have them. The pools give them to no other Service. It returns all later ones, which stay
// closed: quota, namespaces and source ranges of a pool are not to be had by another field.
func (c *Compiler) withholdExternalIPs(
	s *lb.State,
	take func(place int, part lb.Range, owner string),
) (later []serviceAddress) {
	claims := c.claimed(func(claims *serviceClaims) []netip.Addr { return claims.externalIPs })
	if len(claims) == 0 {
		return nil
	}
	holders := holdersOf(s, claims)
	index := placesOf(len(s.Pools), func(i int) []lb.Range { return s.Pools[i].Ranges })
	for _, old := range []bool{true, false} {
		for _, claim := range claims {
			part, found := index.Part(claim.address)
			if !found || c.common.recorded.kept[claim] != old {
				continue
			}
			p, holder := &s.Pools[part.Owner], holders[claim.address]
			first := old || !c.common.recorded.sees(claim.address) && holder == lb.Key{}
			if first && len(p.ExternalIPs) < maxRecorded {
				p.ExternalIPs = append(p.ExternalIPs, lb.ExternalIP{Address: claim.address, Service: claim.service})
				owner := fmt.Sprintf("Service %q, in its spec.externalIPs", claim.service)
				take(part.Owner, lb.Range{From: claim.address, To: claim.address}, owner)
			} else if holder != claim.service {
				later = append(later, claim)
			}
		}
	}
	for i := range s.Pools {
		slices.SortFunc(s.Pools[i].ExternalIPs, lb.ExternalIP.Compare)
	}
	return later
}

// reportClosed notes which externalIPs stay closed. Where a pool leaves undeclared ports alone none does.
func reportClosed(r *report, s *lb.State, later []serviceAddress) {
	index := placesOf(len(s.Pools), func(i int) []lb.Range { return s.Pools[i].Ranges })
	closed := map[int][]string{}
	for _, claim := range later {
		part, _ := index.Part(claim.address)
		if s.Pools[part.Owner].Open {
			continue
		}
		s.ClosedIPs = append(s.ClosedIPs, lb.ExternalIP{Address: claim.address, Service: claim.service})
		closed[part.Owner] = append(closed[part.Owner], fmt.Sprintf("%s (Service %q)", claim.address, claim.service))
	}
	for place, list := range closed {
		r.note(lb.Object{Kind: KindPool, Name: s.Pools[place].Name}, lb.ExternalIPClosed,
			"spec.externalIPs of Services opens no address of a pool, and these stay closed: %s: "+
				"take them out of the Services, or out of the pool", lb.SomeOf(list))
	}
}

// holdersOf returns the first Service of ours that holds each of these addresses.
func holdersOf(s *lb.State, claims []serviceAddress) map[netip.Addr]lb.Key {
	claimed := map[netip.Addr]bool{}
	for _, claim := range claims {
		claimed[claim.address] = true
	}
	out := map[netip.Addr]lb.Key{}
	for _, svc := range s.Services {
		for _, a := range svc.Addresses {
			if _, known := out[a]; claimed[a] && !known {
				out[a] = svc.Key
			}
		}
	}
	return out
}
