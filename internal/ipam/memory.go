package ipam

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// maxRemembered bounds the lists in a pool's memory and status: some 30 KiB of an object.
const maxRemembered = 256

// memory is the releases that the pools record.
type memory struct {
	// last release of an address.
	last map[netip.Addr]release
	// own lists the releases of each subject, latest first.
	own map[lb.Key][]release
	// dated: what this decision has to remember bears the time of the decision.
	dated bool
}

type release struct {
	lb.Release
	// pool has the record, or is where the address came from.
	pool string
	// over: reuseDelay is over early, since the namespace released more addresses than its quota allows it to hold.
	over bool
}

// newMemory reads the releases of the pools, and notes in the supplies which lie in them. A time in the future is of a
// wrong clock: it counts as now.
func newMemory(s lb.State, supplies []*supply, index lb.Index[*supply]) memory {
	m := memory{last: map[netip.Addr]release{}, own: map[lb.Key][]release{}}
	for _, p := range s.Pools {
		for _, r := range p.Released {
			if r.Time.After(s.Now) {
				r.Time, m.dated = s.Now, true
			}
			if have, twice := m.last[r.Address]; !twice || have.Time.Before(r.Time) {
				m.last[r.Address] = release{r, p.Name, false}
			}
		}
	}
	for addr, r := range m.last {
		m.own[r.Holder] = append(m.own[r.Holder], r)
		if s := index.Find(addr); s != nil {
			family := lb.FamilyOf(addr)
			s.old[family] = append(s.old[family], r)
		}
	}
	for _, releases := range m.own {
		slices.SortFunc(releases, latestFirst)
	}
	for _, supply := range supplies {
		for family, releases := range supply.old {
			slices.SortFunc(releases, latestFirst)
			released := map[string]int{}
			quota, bounded := supply.Quota[family]
			for i := range releases {
				r := &releases[i]
				released[r.Holder.Namespace]++
				r.over = bounded && released[r.Holder.Namespace] > quota
				m.last[r.Address] = *r
			}
			slices.Reverse(releases)
			slices.SortStableFunc(releases, func(a, b release) int { return int(one(b.over) - one(a.over)) })
		}
	}
	return m
}

func latestFirst(a, b release) int {
	return cmp.Or(b.Time.Compare(a.Time), b.Address.Compare(a.Address))
}

// until returns when the address may be assigned to others than its last holder; zero means at any time.
func (m *memory) until(addr netip.Addr, pool *supply) time.Time {
	r, known := m.last[addr]
	if !known || pool == nil || pool.ReuseDelay <= 0 || r.over {
		return time.Time{}
	}
	return r.Time.Add(pool.ReuseDelay)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// earliest returns the first release of an address of the family that is free. Within one decision addresses are only
// ever taken, so that a release that was passed over is never looked at again.
func (a *assigner) earliest(pool *supply, family lb.Family) (netip.Addr, bool) {
	for _, r := range pool.old[family][pool.tried[family]:] {
		if _, taken := a.holders[r.Address]; !taken && !pool.avoids(r.Address) {
			return r.Address, true
		}
		pool.tried[family]++
	}
	return netip.Addr{}, false
}

// remember writes the releases into the usages and returns when the next quarantine ends.
func (a *assigner) remember(usages []Usage) time.Time {
	a.departures()
	byPool := map[string][]release{}
	for addr, r := range a.memory.last {
		if a.holders[addr].held() {
			continue
		}
		// The pool that it lies in records it, else its former pool.
		if s := a.index.Find(addr); s != nil {
			r.pool = s.Name
		}
		byPool[r.pool] = append(byPool[r.pool], r)
	}
	var next time.Time
	for i := range usages {
		u, p := &usages[i], &a.state.Pools[i]
		releases := byPool[p.Name]
		u.ReleasedForgotten = p.ReleasedForgotten + int64(max(0, len(releases)-maxRemembered))
		for _, r := range remembered(releases) {
			u.Released = append(u.Released, r.Release)
			if until := r.Time.Add(p.ReuseDelay); a.state.Now.Before(until) {
				next = lb.Sooner(next, until)
			}
		}
	}
	a.handOver(usages)
	return next
}

// handOver keeps in the memory of a pool the releases of addresses that lie in another pool now, until that one has
// recorded them: the controller may end between the two writes.
func (a *assigner) handOver(usages []Usage) {
	has := func(list []lb.Release, r lb.Release) bool {
		return slices.ContainsFunc(list, func(o lb.Release) bool {
			return o.Address == r.Address &&
				!o.Time.Before(r.Time)
		})
	}
	for i := range usages {
		u := &usages[i]
		for _, r := range a.state.Pools[i].Released {
			to, last := a.index.Find(r.Address), a.memory.last[r.Address].Release
			isSuperseded := r.Time.Before(last.Time)
			if to == nil || to.place == i || isSuperseded || len(u.Released) == maxRemembered {
				continue
			}
			if has(usages[to.place].Released, last) && !has(to.Released, last) {
				u.Released = append(u.Released, last)
				u.HandOver++
			}
		}
	}
}

// remembered returns the releases that a pool records, latest first. Of each namespace it takes the latest ones, so
// that no namespace causes the releases of another to be forgotten.
func remembered(releases []release) []release {
	slices.SortFunc(releases, latestFirst)
	later, before := map[string]int{}, make(map[netip.Addr]int, len(releases))
	for _, r := range releases {
		before[r.Address] = later[r.Holder.Namespace]
		later[r.Holder.Namespace]++
	}
	slices.SortStableFunc(releases, func(a, b release) int { return cmp.Compare(before[a.Address], before[b.Address]) })
	releases = releases[:min(maxRemembered, len(releases))]
	slices.SortFunc(releases, latestFirst)
	return releases
}

// departures records the release of every address that is in a status but that no object holds any more, unless it is
// recorded already. If another writer took the address out of a status, any recorded release counts: that may be a
// later one, by others.
func (a *assigner) departures() {
	recorded := map[netip.Addr]bool{}
	record := func(addr netip.Addr, pool string, by lb.Key, uid string) {
		known, before := a.memory.last[addr]
		if recorded[addr] || a.holders[addr].held() || before && known.Holder == by && known.UID == uid {
			return
		}
		recorded[addr], a.memory.dated = true, true
		a.memory.last[addr] = release{lb.Release{Address: addr, Time: a.state.Now, Holder: by, UID: uid}, pool, false}
	}
	for _, s := range slices.Concat(a.floating, a.open) {
		for addr, shown := range s.had {
			if _, known := a.memory.last[addr]; !s.holds(addr) && (shown || !known) {
				record(addr, s.Record.Of(addr).Pool, s.Key, s.UID)
			}
		}
	}
	for _, l := range a.state.Leaving {
		for _, addr := range l.Addresses {
			record(addr, "", l.Key, l.UID)
		}
	}
}
