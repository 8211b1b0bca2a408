package ipam

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// mostRemembered bounds the lists in a pool's memory and status: some 30 KiB of an object.
const mostRemembered = 256

// memory is the releases that the pools record.
type memory struct {
	// last release of an address.
	last map[netip.Addr]lb.Release
	// own lists the releases of each subject, latest first.
	own map[lb.Key][]lb.Release
	// old lists the releases within a pool's ranges: those that are over first, then earliest first.
	old map[*supply][]lb.Release
	// over are released addresses for which reuseDelay is over early: their namespace gave back more than its quota allows it to hold.
	over map[netip.Addr]bool
}

func newMemory(pools []lb.Pool, index poolIndex) memory {
	m := memory{map[netip.Addr]lb.Release{}, map[lb.Key][]lb.Release{}, map[*supply][]lb.Release{}, map[netip.Addr]bool{}}
	for _, p := range pools {
		for _, r := range p.Released {
			if have, twice := m.last[r.Address]; !twice || have.Time.Before(r.Time) {
				m.last[r.Address] = r
			}
		}
	}
	for addr, r := range m.last {
		m.own[r.Holder] = append(m.own[r.Holder], r)
		if s := index.find(addr); s != nil {
			m.old[s] = append(m.old[s], r)
		}
	}
	for _, releases := range m.own {
		slices.SortFunc(releases, latestFirst)
	}
	gave := map[quotaKey]int{}
	for s, releases := range m.old {
		slices.SortFunc(releases, latestFirst)
		for _, r := range releases {
			key := quotaKey{s.Name, r.Holder.Namespace, lb.FamilyOf(r.Address)}
			gave[key]++
			most, bounded := s.Quota[key.family]
			m.over[r.Address] = bounded && gave[key] > most
		}
		slices.Reverse(releases)
		slices.SortStableFunc(releases, func(a, b lb.Release) int { return cmp.Compare(m.rank(a), m.rank(b)) })
	}
	return m
}

// rank orders releases by whether reuseDelay is over early.
func (m *memory) rank(r lb.Release) int {
	if m.over[r.Address] {
		return 0
	}
	return 1
}

func latestFirst(a, b lb.Release) int {
	return cmp.Or(b.Time.Compare(a.Time), b.Address.Compare(a.Address))
}

// until returns when the address may be assigned to others than its last holder; zero means at any time.
func (m *memory) until(addr netip.Addr, pool *supply) time.Time {
	r, known := m.last[addr]
	if !known || pool == nil || pool.ReuseDelay <= 0 || m.over[addr] {
		return time.Time{}
	}
	return r.Time.Add(pool.ReuseDelay)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// free returns the pool's next free address: one that the subject may have got already, else the lowest without a
// recorded release, else the one released least recently.
func (a *assigner) free(s *subject, pool *supply, family lb.Family) (netip.Addr, bool) {
	for _, addr := range a.unanswered[s.party()] {
		if lb.FamilyOf(addr) == family && a.index.find(addr) == pool && !pool.avoids(addr) && a.admits(s, addr, pool) == nil {
			return addr, true
		}
	}
	if addr, ok := pool.free(family, a.holders, a.memory.last); ok {
		return addr, true
	}
	r, found := a.earliest(pool, family)
	return r.Address, found && !a.state.Now.Before(a.memory.until(r.Address, pool))
}

// nextFree returns when the pool's first quarantine ends; zero if no address is quarantined.
func (a *assigner) nextFree(pool *supply, family lb.Family) time.Time {
	r, _ := a.earliest(pool, family)
	if until := a.memory.until(r.Address, pool); a.state.Now.Before(until) {
		return until
	}
	return time.Time{}
}

// earliest returns the first release of an address of the family that is free. Within one decision addresses are only ever
// taken, so that a release that was passed over is never looked at again.
func (a *assigner) earliest(pool *supply, family lb.Family) (lb.Release, bool) {
	old := a.memory.old[pool]
	for i := pool.passed[family]; i < len(old); i++ {
		r := old[i]
		if _, taken := a.holders[r.Address]; !taken && lb.FamilyOf(r.Address) == family && !pool.avoids(r.Address) {
			pool.passed[family] = i
			return r, true
		}
	}
	pool.passed[family] = len(old)
	return lb.Release{}, false
}

// remember writes the releases into the usages and returns when the next
// quarantine ends. An address that is held is not released. An address that is in
// a status and no longer held is released now, unless its release is recorded already.
func (a *assigner) remember(usages []Usage) time.Time {
	byPool, seen := map[string][]lb.Release{}, map[netip.Addr]bool{}
	for i := range a.state.Pools {
		p := &a.state.Pools[i]
		for _, r := range p.Released {
			t := a.holders[r.Address]
			home := a.home(r.Address, p.Name)
			if !t.held() && a.memory.last[r.Address] == r && !seen[r.Address] {
				seen[r.Address] = true
				byPool[home] = append(byPool[home], r)
			}
		}
	}
	noted := map[netip.Addr]bool{}
	note := func(addr netip.Addr, origin string, by lb.Key, uid string) {
		t, known := a.holders[addr], a.memory.last[addr]
		if t.held() || noted[addr] || known.Address == addr && known.Holder == by && known.UID == uid {
			return
		}
		noted[addr] = true
		home := a.home(addr, origin)
		if known.Address == addr {
			for name, releases := range byPool {
				byPool[name] = slices.DeleteFunc(releases, func(r lb.Release) bool { return r.Address == addr })
			}
		}
		byPool[home] = append(byPool[home], lb.Release{Address: addr, Time: a.state.Now, Holder: by, UID: uid})
	}
	a.departures(note)
	var next time.Time
	for i := range usages {
		u, p := &usages[i], &a.state.Pools[i]
		releases := byPool[p.Name]
		u.ReleasedForgotten = p.ReleasedForgotten + int64(max(0, len(releases)-mostRemembered))
		u.Released = remembered(releases)
		for _, r := range u.Released {
			if until := r.Time.Add(p.ReuseDelay); a.state.Now.Before(until) && (next.IsZero() || until.Before(next)) {
				next = until
			}
		}
	}
	return next
}

// remembered returns the releases that a pool records, latest first. Of each namespace it takes the latest ones, so that none has
// those of another forgotten.
func remembered(releases []lb.Release) []lb.Release {
	slices.SortFunc(releases, latestFirst)
	later, before := map[string]int{}, make(map[netip.Addr]int, len(releases))
	for _, r := range releases {
		before[r.Address] = later[r.Holder.Namespace]
		later[r.Holder.Namespace]++
	}
	slices.SortStableFunc(releases, func(a, b lb.Release) int { return cmp.Compare(before[a.Address], before[b.Address]) })
	releases = releases[:min(mostRemembered, len(releases))]
	slices.SortFunc(releases, latestFirst)
	return releases
}

// home is the pool that records releases of the address: the one it lies in, else the one it came from.
func (a *assigner) home(addr netip.Addr, origin string) string {
	if s := a.index.find(addr); s != nil {
		return s.Name
	}
	return origin
}

// departures notes every address that is in a status but no longer held by that subject. It notes an address that
// another writer took out of a status too, unless a release is recorded: that may be a later one, by others.
func (a *assigner) departures(note func(addr netip.Addr, origin string, by lb.Key, uid string)) {
	for _, subjects := range [][]subject{a.floating, a.services} {
		for i := range subjects {
			s := &subjects[i]
			for addr, why := range references(s.Service) {
				_, known := a.memory.last[addr]
				if !s.holds(addr) && (why == inStatus || why == inRecord && !known) {
					note(addr, s.Record.Of(addr).Pool, s.Key, s.UID)
				}
			}
		}
	}
	for _, l := range a.state.Leaving {
		for _, addr := range l.Addresses {
			note(addr, "", l.Key, l.UID)
		}
	}
}
