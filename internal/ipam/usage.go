package ipam

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// MaxHolders bounds Usage.Holders.
const MaxHolders = 8

// Usage is the decision for one pool: its counts and its records.
type Usage struct {
	Pool       string
	IPv4, IPv6 Counts
	// Retained are addresses that came from the pool, are held, and lie in no pool now. The list is bounded;
	// RetainedCount counts all of them.
	Retained      []lb.Retention
	RetainedCount int64
	// Released are the releases that the pool records, latest first.
	Released []lb.Release
	// ReleasedForgotten counts the releases that were too many to be recorded.
	ReleasedForgotten int64
	// HandOver counts the records that another pool, which took over addresses of this one, has not written yet: the
	// records of their holders, and releases.
	HandOver int64
	// Holders are the first holders of addresses of a pool that is being deleted, ordered.
	Holders []lb.Key
}

// Held returns the number of addresses that are held and lie in the pool, or are retained.
func (u *Usage) Held() int64 {
	return u.IPv4.Assigned + u.IPv6.Assigned + u.RetainedCount
}

// InUse reports whether something would be lost if the pool were deleted. The releases that it records are lost only if
// no pool takes over its addresses, which is known once it is being deleted.
func (u *Usage) InUse(isDeleting bool) bool {
	hasReleases := !isDeleting && len(u.Released) > 0
	return hasReleases || u.Held() > 0 || u.HandOver > 0
}

// countsOf returns the counts of a family.
func (u *Usage) countsOf(family lb.Family) *Counts {
	if family == lb.IPv4 {
		return &u.IPv4
	}
	return &u.IPv6
}

// addHolder adds a holder of an address of a pool that is being deleted.
func (u *Usage) addHolder(t addressHolders) {
	holder := t.floating
	if len(t.services) > 0 {
		holder = t.services[0]
	}

	i, ok := slices.BinarySearchFunc(u.Holders, holder.Key, lb.Key.Compare)
	if !ok {
		u.Holders = slices.Insert(u.Holders, i, holder.Key)
		u.Holders = u.Holders[:min(MaxHolders, len(u.Holders))]
	}
}

// Counts are the numbers of addresses of a family. They are at most 2^62.
type Counts struct {
	// Assigned counts the addresses that are held.
	Assigned int64
	// Available counts the addresses that can still be assigned.
	Available int64
	// Quarantined counts the addresses that wait for reuseDelay.
	Quarantined int64
}

// usage returns the Usage of all pools. An address that an object has in its status, or may have got, is not available
// yet.
func (a *assigner) usage() []Usage {
	out := make([]Usage, len(a.state.Pools))
	for _, s := range a.supplies {
		out[s.index] = s.counts
	}

	a.addDeletingHolders(out)
	a.countQuarantined(out)

	for _, s := range a.supplies {
		for _, family := range []lb.Family{lb.IPv4, lb.IPv6} {
			counts := out[s.index].countsOf(family)
			if s.Deleting {
				counts.Available = 0
			} else {
				counts.Available += s.size(family)
			}
		}
	}

	a.addRetained(out)
	return out
}

// addDeletingHolders lists the holders of addresses of pools that are being deleted.
func (a *assigner) addDeletingHolders(out []Usage) {
	isDeleting := func(s *supply) bool { return s.Deleting }
	if !slices.ContainsFunc(a.supplies, isDeleting) {
		return
	}

	for addr, t := range a.holders {
		s := a.index.Find(addr)
		if s == nil || !s.Deleting {
			continue
		}
		if t.isHeld() {
			out[s.index].addHolder(t)
		}
	}
}

// countQuarantined counts the free addresses that wait for reuseDelay.
func (a *assigner) countQuarantined(out []Usage) {
	for addr := range a.releases.byAddress {
		s := a.index.Find(addr)
		_, isTaken := a.holders[addr]
		if s == nil || isTaken || s.avoids(addr) {
			continue
		}

		until := a.releases.reservedUntil(addr, s)
		if a.state.Now.Before(until) {
			counts := out[s.index].countsOf(lb.FamilyOf(addr))
			counts.Quarantined++
			counts.Available--
		}
	}
}

// addRetained lists the held addresses that came from a pool and lie in no pool now, and counts those that lie in
// another pool.
func (a *assigner) addRetained(out []Usage) {
	index := map[string]int{}
	recorded := map[lb.Retention]lb.Retention{} // by address and holder
	for i, p := range a.state.Pools {
		index[p.Name] = i
		for _, r := range p.Retained {
			key := lb.Retention{Address: r.Address, Holder: r.Holder}
			recorded[key] = r
		}
	}

	isListed := map[netip.Addr]bool{}
	for _, s := range slices.Concat(a.services, a.floating) {
		for _, addr := range s.held {
			pool := a.index.Find(addr)
			name := s.Record.Of(addr).Pool
			isOfOrigin := pool != nil && pool.Name == name
			if !addr.IsValid() || isOfOrigin {
				continue
			}

			origin, ok := index[name]
			if !ok {
				continue
			}

			isHandedOver := pool != nil && pool.index != origin
			if isHandedOver {
				out[origin].HandOver++
			}
			if pool != nil || isListed[addr] {
				continue
			}

			isListed[addr] = true

			retention := lb.Retention{Address: addr, Holder: s.Key}
			if r, ok := recorded[retention]; ok {
				retention = r
			} else {
				retention.Since = a.state.Now
			}

			out[origin].Retained = append(out[origin].Retained, retention)
		}
	}

	for i := range out {
		out[i].limitRetained()
	}
}

// limitRetained orders the retained addresses, counts them, and bounds their list.
func (u *Usage) limitRetained() {
	slices.SortFunc(u.Retained, func(a, b lb.Retention) int {
		return a.Address.Compare(b.Address)
	})
	u.RetainedCount = int64(len(u.Retained))
	u.Retained = u.Retained[:min(maxReleases, len(u.Retained))]
}
