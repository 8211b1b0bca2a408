package ipam

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Usage is how many addresses of a pool are held, and how many are still
// available. Counts are capped at the largest int64.
type Usage struct {
	Pool                             string
	AssignedIPv4, AssignedIPv6       int64
	AvailableIPv4, AvailableIPv6     int64
	QuarantinedIPv4, QuarantinedIPv6 int64
	// Retained addresses came from the pool, are held and lie in no pool now. The list is bounded;
	// RetainedCount counts them all.
	Retained      []lb.Retention
	RetainedCount int64
	// Released are the releases that the pool records, latest first.
	Released          []lb.Release
	ReleasedForgotten int64
	// Holders of addresses of a pool that is being deleted, ordered, as many as fit into a sentence.
	Holders []lb.Key
}

// tally counts addresses by the place of their pool.
type tally []struct{ v4, v6 int64 }

func (t tally) add(pool *supply, addr netip.Addr) {
	if addr.Is4() {
		t[pool.place].v4++
	} else {
		t[pool.place].v6++
	}
}

// usage counts what is finally held. An address that its holder gives up
// already counts as available; a reserved address does not.
func (a *assigner) usage() []Usage {
	n := len(a.state.Pools)
	assigned, blocked, quarantined := make(tally, n), make(tally, n), make(tally, n)
	reserved := map[netip.Addr]bool{}
	for addr := range a.state.Reserved {
		reserved[addr] = true
	}
	for _, l := range a.state.Leaving {
		for _, addr := range l.Addresses {
			reserved[addr] = true
		}
	}
	for _, addresses := range a.unanswered {
		for _, addr := range addresses {
			reserved[addr] = true
		}
	}
	out := make([]Usage, n)
	for addr, t := range a.holders {
		s, held := a.index.find(addr), t.held()
		if s == nil {
			continue
		}
		if held {
			assigned.add(s, addr)
			if s.Deleting {
				out[s.place].hold(a.holder(t))
			}
		}
		if (held || reserved[addr]) && !s.avoids(addr) {
			blocked.add(s, addr)
		}
	}
	for s, releases := range a.memory.old {
		for _, r := range releases {
			t := a.holders[r.Address]
			if !t.held() && !reserved[r.Address] && !s.avoids(r.Address) && a.state.Now.Before(a.memory.until(r.Address, s)) {
				quarantined.add(s, r.Address)
			}
		}
	}
	for _, s := range a.supplies {
		u := &out[s.place]
		u.Pool, u.AssignedIPv4, u.AssignedIPv6 = s.Name, assigned[s.place].v4, assigned[s.place].v6
		u.QuarantinedIPv4, u.QuarantinedIPv6 = quarantined[s.place].v4, quarantined[s.place].v6
		if !s.Deleting {
			u.AvailableIPv4 = s.size(lb.IPv4, blocked[s.place].v4+u.QuarantinedIPv4)
			u.AvailableIPv6 = s.size(lb.IPv6, blocked[s.place].v6+u.QuarantinedIPv6)
		}
	}
	a.retain(out)
	return out
}

// hold records a holder of a pool that is being deleted.
func (u *Usage) hold(by lb.Key) {
	const most = 8
	i, found := slices.BinarySearchFunc(u.Holders, by, lb.Key.Compare)
	if !found {
		u.Holders = slices.Insert(u.Holders, i, by)
		u.Holders = u.Holders[:min(most, len(u.Holders))]
	}
}

func (a *assigner) holder(t holders) lb.Key {
	if len(t.services) > 0 {
		return t.services[0].Key
	}
	return a.floating[t.floating-1].Key
}

// retain lists the addresses that are held, came from a pool and lie in no pool now.
func (a *assigner) retain(out []Usage) {
	place := map[string]int{}
	since := map[lb.Retention]lb.Retention{}
	for i, p := range a.state.Pools {
		place[p.Name] = i
		for _, r := range p.Retained {
			since[lb.Retention{Address: r.Address, Holder: r.Holder}] = r
		}
	}
	seen := map[netip.Addr]bool{}
	for _, subjects := range [][]subject{a.services, a.floating} {
		for i := range subjects {
			s := &subjects[i]
			for _, addr := range s.held {
				if !addr.IsValid() || a.index.find(addr) != nil {
					continue
				}
				at, known := place[s.Record.Of(addr).Pool]
				if !known || seen[addr] {
					continue
				}
				seen[addr] = true
				r := lb.Retention{Address: addr, Holder: s.Key}
				if before, known := since[r]; known {
					r = before
				} else {
					r.Since = a.state.Now
				}
				out[at].Retained = append(out[at].Retained, r)
			}
		}
	}
	for i := range out {
		u := &out[i]
		slices.SortFunc(u.Retained, func(a, b lb.Retention) int { return a.Address.Compare(b.Address) })
		u.RetainedCount = int64(len(u.Retained))
		u.Retained = u.Retained[:min(mostRemembered, len(u.Retained))]
	}
}
