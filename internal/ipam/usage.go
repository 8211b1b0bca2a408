package ipam

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Usage is what a pool has.
type Usage struct {
	Pool       string
	IPv4, IPv6 Counts
	// Retained addresses came from the pool, are held and lie in no pool now. The list is bounded;
	// RetainedCount counts them all.
	Retained      []lb.Retention
	RetainedCount int64
	// Released are the releases that the pool records, latest first.
	Released          []lb.Release
	ReleasedForgotten int64
	// HandOver counts what still has to name the pool that took addresses over from this one: records of their holders,
	// and releases that the other pool has not recorded yet.
	HandOver int64
	// Holders of addresses of a pool that is being deleted, ordered, as many as fit into a sentence.
	Holders []lb.Key
}

// Held counts the addresses that are held and lie in the pool, or are retained.
func (u *Usage) Held() int64 { return u.IPv4.Assigned + u.IPv6.Assigned + u.RetainedCount }

// InUse reports whether something would be lost if the pool went. The releases that it records are lost only if nothing
// takes its addresses over, which is known when it is being deleted.
func (u *Usage) InUse(isDeleting bool) bool {
	return u.Held() > 0 || u.HandOver > 0 || !isDeleting && len(u.Released) > 0
}

// Counts are how many addresses of a family are held, can still be assigned, and wait for reuseDelay. They are capped
// at 2^62.
type Counts struct {
	Assigned, Available, Quarantined int64
}

func (u *Usage) of(family lb.Family) *Counts {
	if family == lb.IPv4 {
		return &u.IPv4
	}
	return &u.IPv6
}

// usage counts what is finally held. What an object has in its status, or may have got, is not available yet.
func (a *assigner) usage() []Usage {
	out := make([]Usage, len(a.state.Pools))
	for _, s := range a.supplies {
		out[s.place] = s.counts
	}
	if slices.ContainsFunc(a.supplies, func(s *supply) bool { return s.Deleting }) {
		for addr, t := range a.holders {
			if s := a.index.Find(addr); s != nil && s.Deleting && t.held() {
				out[s.place].hold(t)
			}
		}
	}
	for addr := range a.memory.last {
		s := a.index.Find(addr)
		if _, taken := a.holders[addr]; s != nil &&
			!taken &&
			!s.avoids(addr) &&
			a.state.Now.Before(a.memory.until(addr, s)) {
			counts := out[s.place].of(lb.FamilyOf(addr))
			counts.Quarantined++
			counts.Available--
		}
	}
	for _, s := range a.supplies {
		for _, family := range []lb.Family{lb.IPv4, lb.IPv6} {
			if counts := out[s.place].of(family); s.Deleting {
				counts.Available = 0
			} else {
				counts.Available += s.size(family)
			}
		}
	}
	a.retain(out)
	return out
}

// MaxHolders bounds Usage.Holders.
const MaxHolders = 8

// hold records a holder of an address of a pool that is being deleted.
func (u *Usage) hold(t holders) {
	by := t.floating
	if len(t.services) > 0 {
		by = t.services[0]
	}
	if i, found := slices.BinarySearchFunc(u.Holders, by.Key, lb.Key.Compare); !found {
		u.Holders = slices.Insert(u.Holders, i, by.Key)
		u.Holders = u.Holders[:min(MaxHolders, len(u.Holders))]
	}
}

// retain lists the addresses that are held, came from a pool and lie in no pool now, and counts those that lie in
// another one.
func (a *assigner) retain(out []Usage) {
	place, since := map[string]int{}, map[lb.Retention]lb.Retention{}
	for i, p := range a.state.Pools {
		place[p.Name] = i
		for _, r := range p.Retained {
			since[lb.Retention{Address: r.Address, Holder: r.Holder}] = r
		}
	}
	seen := map[netip.Addr]bool{}
	for _, s := range slices.Concat(a.open, a.floating) {
		for _, addr := range s.held {
			if !addr.IsValid() {
				continue
			}
			at, known := place[s.Record.Of(addr).Pool]
			if !known {
				continue
			}
			if pool := a.index.Find(addr); pool != nil {
				out[at].HandOver += one(pool.place != at)
				continue
			}
			if seen[addr] {
				continue
			}
			seen[addr] = true
			r := lb.Retention{Address: addr, Holder: s.Key}
			if before, known := since[r]; known {
				r = before
			} else {
				r.Since, a.memory.dated = a.state.Now, true
			}
			out[at].Retained = append(out[at].Retained, r)
		}
	}
	for i := range out {
		u := &out[i]
		slices.SortFunc(u.Retained, func(a, b lb.Retention) int { return a.Address.Compare(b.Address) })
		u.RetainedCount = int64(len(u.Retained))
		u.Retained = u.Retained[:min(maxRemembered, len(u.Retained))]
	}
}
