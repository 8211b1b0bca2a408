package ipam

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// maxReleases bounds the lists in a PoolMemory and in a pool's status, to some 30 KiB of an object.
const maxReleases = 256

// releaseLog has the releases that the pools record.
type releaseLog struct {
	// byAddress has the last release of each address.
	byAddress map[netip.Addr]releaseRecord
	// byHolder has the releases of each subject, latest first.
	byHolder map[lb.Key][]releaseRecord
	// usesClock reports whether the decision records something with the time of the decision.
	usesClock bool
}

// releaseRecord is one release.
type releaseRecord struct {
	lb.Release
	// pool is the pool that has the record, or that the address came from.
	pool string
	// isOverQuota reports whether the namespace released more addresses than its quota lets it hold. Then reuseDelay ends
	// early.
	isOverQuota bool
}

// newReleaseLog reads the releases of the pools, and adds them to the supplies that their addresses lie in. A time in
// the future comes from a wrong clock, and counts as the present.
func newReleaseLog(s lb.State, supplies []*supply, index lb.Index[*supply]) releaseLog {
	l := releaseLog{byAddress: map[netip.Addr]releaseRecord{}, byHolder: map[lb.Key][]releaseRecord{}}
	for _, p := range s.Pools {
		for _, r := range p.Released {
			if r.Time.After(s.Now) {
				r.Time, l.usesClock = s.Now, true
			}
			if other, ok := l.byAddress[r.Address]; !ok || other.Time.Before(r.Time) {
				l.byAddress[r.Address] = releaseRecord{Release: r, pool: p.Name}
			}
		}
	}

	for addr, r := range l.byAddress {
		l.byHolder[r.Holder] = append(l.byHolder[r.Holder], r)
		s := index.Find(addr)
		if s != nil {
			family := lb.FamilyOf(addr)
			s.released[family] = append(s.released[family], r)
		}
	}
	for _, releases := range l.byHolder {
		slices.SortFunc(releases, latestFirst)
	}
	for _, s := range supplies {
		for family, releases := range s.released {
			l.applyQuota(s, family, releases)
		}
	}
	return l
}

// applyQuota marks the releases of a pool beyond the quota of their namespace. It orders them: these first, then the
// others, each earliest first.
func (l *releaseLog) applyQuota(s *supply, family lb.Family, releases []releaseRecord) {
	slices.SortFunc(releases, latestFirst)
	quota, hasQuota := s.Quota[family]
	count := map[string]int{}
	for i := range releases {
		r := &releases[i]
		count[r.Holder.Namespace]++
		r.isOverQuota = hasQuota && count[r.Holder.Namespace] > quota
		l.byAddress[r.Address] = *r
	}

	slices.Reverse(releases)
	slices.SortStableFunc(releases, func(a, b releaseRecord) int {
		return int(change(a.isOverQuota, b.isOverQuota))
	})
}

func latestFirst(a, b releaseRecord) int {
	return cmp.Or(b.Time.Compare(a.Time), b.Address.Compare(a.Address))
}

// reservedUntil returns the time from which the address may be assigned to others than its last holder; zero means at
// any time.
func (l *releaseLog) reservedUntil(addr netip.Addr, pool *supply) time.Time {
	r, ok := l.byAddress[addr]
	if !ok || pool == nil || pool.ReuseDelay <= 0 || r.isOverQuota {
		return time.Time{}
	}
	return r.Time.Add(pool.ReuseDelay)
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// nextReleased returns the free address of the family with the first release in order. Within one decision addresses
// are only taken, so a release that was passed over is not looked at again.
func (a *assigner) nextReleased(pool *supply, family lb.Family) (netip.Addr, bool) {
	for _, r := range pool.released[family][pool.passed[family]:] {
		_, isTaken := a.holders[r.Address]
		if !isTaken && !pool.avoids(r.Address) {
			return r.Address, true
		}
		pool.passed[family]++
	}
	return netip.Addr{}, false
}

// writeReleases adds the releases to the usages, and returns the time at which the next quarantine ends.
func (a *assigner) writeReleases(usages []Usage) time.Time {
	a.recordReleases()

	byPool := map[string][]releaseRecord{}
	for addr, r := range a.releases.byAddress {
		if a.holders[addr].isHeld() {
			continue
		}
		// The pool that the address lies in records the release, else its former pool.
		s := a.index.Find(addr)
		if s != nil {
			r.pool = s.Name
		}
		byPool[r.pool] = append(byPool[r.pool], r)
	}

	var next time.Time
	for i := range usages {
		u, p := &usages[i], &a.state.Pools[i]
		releases := byPool[p.Name]
		u.ReleasedForgotten = p.ReleasedForgotten + int64(max(0, len(releases)-maxReleases))
		for _, r := range selectReleases(releases) {
			u.Released = append(u.Released, r.Release)
			until := r.Time.Add(p.ReuseDelay)
			if a.state.Now.Before(until) {
				next = lb.Sooner(next, until)
			}
		}
	}
	a.handOver(usages)
	return next
}

// handOver keeps the releases of addresses that lie in another pool now, until that pool has recorded them: the
// controller may end between the two writes.
func (a *assigner) handOver(usages []Usage) {
	contains := func(list []lb.Release, r lb.Release) bool {
		return slices.ContainsFunc(list, func(o lb.Release) bool {
			return o.Address == r.Address && !o.Time.Before(r.Time)
		})
	}

	for i := range usages {
		u := &usages[i]
		for _, r := range a.state.Pools[i].Released {
			to, last := a.index.Find(r.Address), a.releases.byAddress[r.Address].Release
			isSuperseded := r.Time.Before(last.Time)
			if to == nil || to.index == i || isSuperseded || len(u.Released) == maxReleases {
				continue
			}

			isPending := contains(usages[to.index].Released, last) && !contains(to.Released, last)
			if isPending {
				u.Released = append(u.Released, last)
				u.HandOver++
			}
		}
	}
}

// selectReleases returns the releases that a pool records, latest first. It prefers the latest releases of each
// namespace, so that no namespace displaces the releases of another.
func selectReleases(releases []releaseRecord) []releaseRecord {
	slices.SortFunc(releases, latestFirst)

	count := map[string]int{}
	rank := make(map[netip.Addr]int, len(releases)) // within the namespace
	for _, r := range releases {
		rank[r.Address] = count[r.Holder.Namespace]
		count[r.Holder.Namespace]++
	}

	slices.SortStableFunc(releases, func(a, b releaseRecord) int {
		return cmp.Compare(rank[a.Address], rank[b.Address])
	})
	releases = releases[:min(maxReleases, len(releases))]
	slices.SortFunc(releases, latestFirst)
	return releases
}

// recordReleases records the release of every address that is in a status but is not held any more, unless it is
// recorded already. If another writer removed the address from a status, any recorded release counts: it may be a later
// one, by another holder.
func (a *assigner) recordReleases() {
	isNew := map[netip.Addr]bool{}
	record := func(addr netip.Addr, pool string, holder lb.Key, uid string) {
		last, ok := a.releases.byAddress[addr]
		isRecorded := ok && last.Holder == holder && last.UID == uid
		if isNew[addr] || isRecorded || a.holders[addr].isHeld() {
			return
		}
		isNew[addr], a.releases.usesClock = true, true
		a.releases.byAddress[addr] = releaseRecord{
			Release: lb.Release{Address: addr, Time: a.state.Now, Holder: holder, UID: uid},
			pool:    pool,
		}
	}

	for _, s := range slices.Concat(a.floating, a.open) {
		for addr, isShown := range s.former {
			_, isRecorded := a.releases.byAddress[addr]
			if !s.holds(addr) && (isShown || !isRecorded) {
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
