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

// externalRecords are the records of externalIPs in the statuses of all pools.
type externalRecords struct {
	// searched are the ranges that the controller has searched for externalIPs.
	searched []lb.Range
	// kept are the externalIPs that existed when it searched.
	kept map[serviceAddress]bool
}

// readExternalRecords reads the records of all pools. It also sets the ranges of each pool that the filter guards, and
// those that are not guarded: ranges that the controller has not searched yet, and recorded externalIPs.
//
// A range that was searched for one pool counts as searched for all, since ranges move between pools.
func readExternalRecords(pools []*pool, objects []*v1beta1.IPAddressPool) externalRecords {
	records := externalRecords{kept: map[serviceAddress]bool{}}
	entries := map[string][]lb.Range{}
	for _, p := range pools {
		entries[p.Name] = p.entries
		p.Guarded = lb.Joined(p.entries)
	}

	var open []lb.Range
	for _, o := range objects {
		// A controller that recorded no ranges guarded all of them.
		if len(o.Status.Guarded) == 0 && len(o.Status.Conditions) > 0 {
			records.searched = append(records.searched, entries[o.Name]...)
		}

		for _, text := range o.Status.Guarded {
			r, _, err := parseRange(text)
			if err != nil {
				continue
			}
			records.searched = append(records.searched, r)
		}

		for _, e := range o.Status.ExternalIPs {
			a, err := parseAddr(e.Address)
			if err != nil {
				continue
			}

			record := serviceAddress{address: a, service: lb.ParseKey(e.Service)}
			records.kept[record] = true
			open = append(open, rangeOfOne(a))
		}
	}

	records.searched = lb.Joined(records.searched)
	guarded := lb.Subtract(records.searched, lb.Joined(open))
	for _, p := range pools {
		p.Unguarded = lb.Subtract(p.Ranges, guarded)
	}

	return records
}

// hasSearched reports whether the controller searched for externalIPs with this address.
func (k *externalRecords) hasSearched(a netip.Addr) bool {
	i, _ := slices.BinarySearchFunc(k.searched, a, func(r lb.Range, a netip.Addr) int {
		return r.To.Compare(a)
	})
	return i < len(k.searched) && k.searched[i].Contains(a)
}

// withholdExternalIPs records the externalIPs that a pool covers for the first time, and keeps recorded ones while
// their Services have them. The pools assign them to no other Service.
//
// It returns all later externalIPs. They stay closed: a user must not bypass the quota, namespaces and source ranges of
// a pool by another field.
func withholdExternalIPs(
	s *lb.State,
	records *externalRecords,
	claims []serviceAddress,
	withhold withholdFunc,
) (later []serviceAddress) {
	if len(claims) == 0 {
		return nil
	}

	// Recorded claims come first, since a record has a bound.
	var recorded, others []serviceAddress
	for _, claim := range claims {
		if records.kept[claim] {
			recorded = append(recorded, claim)
		} else {
			others = append(others, claim)
		}
	}

	holders := holdersOf(s, claims)
	index := indexPools(s.Pools)
	for i, claim := range slices.Concat(recorded, others) {
		part, ok := index.Part(claim.address)
		if !ok {
			continue
		}

		p := &s.Pools[part.Owner]
		holder := holders[claim.address]
		isRecorded := i < len(recorded)
		isNew := !records.hasSearched(claim.address) && holder == lb.Key{}
		mayRecord := (isRecorded || isNew) && len(p.ExternalIPs) < maxRecorded
		switch {
		case mayRecord:
			p.ExternalIPs = append(p.ExternalIPs, claim.externalIP())
			owner := fmt.Sprintf("Service %q, in its spec.externalIPs", claim.service)
			withhold(part.Owner, rangeOfOne(claim.address), owner)
		case holder != claim.service:
			later = append(later, claim)
		}
	}

	for i := range s.Pools {
		slices.SortFunc(s.Pools[i].ExternalIPs, lb.ExternalIP.Compare)
	}

	return later
}

// externalIP returns the address as an externalIP of its Service.
func (a serviceAddress) externalIP() lb.ExternalIP {
	return lb.ExternalIP{Address: a.address, Service: a.service}
}

// reportClosed reports which externalIPs stay closed. No address is closed in a pool that does not filter undeclared
// ports.
func reportClosed(r *problemList, s *lb.State, later []serviceAddress) {
	index := indexPools(s.Pools)
	closed := map[int][]string{}
	for _, claim := range later {
		part, _ := index.Part(claim.address)
		if s.Pools[part.Owner].Open {
			continue
		}

		s.ClosedIPs = append(s.ClosedIPs, claim.externalIP())
		text := fmt.Sprintf("%s (Service %q)", claim.address, claim.service)
		closed[part.Owner] = append(closed[part.Owner], text)
	}

	for i, list := range closed {
		object := lb.Object{Kind: KindPool, Name: s.Pools[i].Name}
		r.addNote(object, lb.ExternalIPClosed,
			"spec.externalIPs of Services opens no address of a pool, and these stay closed: %s: "+
				"take them out of the Services, or out of the pool",
			lb.SomeOf(list))
	}
}

// holdersOf returns for each claimed address the first Service of ours that holds it.
func holdersOf(s *lb.State, claims []serviceAddress) map[netip.Addr]lb.Key {
	isClaimed := map[netip.Addr]bool{}
	for _, claim := range claims {
		isClaimed[claim.address] = true
	}

	out := map[netip.Addr]lb.Key{}
	for _, svc := range s.Services {
		for _, a := range svc.Addresses {
			_, isHeld := out[a]
			if isClaimed[a] && !isHeld {
				out[a] = svc.Key
			}
		}
	}

	return out
}
