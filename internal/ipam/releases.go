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
}

// releaseRecord is one release.
type releaseRecord struct {
	lb.Release
	// pool is the pool that has the record, or that the address came from.
	pool string
	// isOverQuota reports whether the namespace released more addresses than its quota lets it hold. Then reuseDelay
	// ends early.
	isOverQuota bool
}

// newReleaseLog reads the releases of the pools, and adds them to the supplies that their addresses lie in. A time in
// the future comes from a wrong clock, and counts as the present.
func newReleaseLog(s lb.State, supplies []*supply, index lb.Index[*supply]) releaseLog {
	l := releaseLog{
		byAddress: map[netip.Addr]releaseRecord{},
		byHolder:  map[lb.Key][]releaseRecord{},
	}
	for _, p := range s.Pools {
		for _, r := range p.Released {
			l.add(r, p.Name, s.Now)
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

// add adds a release that a pool records, unless a later one of the address is known.
func (l *releaseLog) add(r lb.Release, pool string, at time.Time) {
	if r.Time.After(at) {
		r.Time = at
	}

	other, isKnown := l.byAddress[r.Address]
	if isKnown && !other.Time.Before(r.Time) {
		return
	}

	l.byAddress[r.Address] = releaseRecord{
		Release: r,
		pool:    pool,
	}
}

// applyQuota marks the releases of a pool beyond the quota of their namespace. It orders them: these first, then the
// others, each earliest first.
func (l *releaseLog) applyQuota(s *supply, family lb.Family, releases []releaseRecord) {
	slices.SortFunc(releases, latestFirst)
	quota, hasQuota := s.Quota[family]
	count := map[string]int{}
	for i := range releases {
		r := &releases[i]
		namespace := r.Holder.Namespace
		count[namespace]++
		r.isOverQuota = hasQuota && count[namespace] > quota
		l.byAddress[r.Address] = *r
	}

	slices.Reverse(releases)
	slices.SortStableFunc(releases, func(a, b releaseRecord) int {
		return int(change(a.isOverQuota, b.isOverQuota))
	})
}

// latestFirst orders releases by time, the latest first.
func latestFirst(a, b releaseRecord) int {
	return cmp.Or(
		b.Time.Compare(a.Time),
		b.Address.Compare(a.Address),
	)
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

// formatTime returns a time as the text of a message.
func formatTime(t time.Time) string {
	return t.UTC().Format(time.RFC3339)
}

// nextReleased returns the free address of the family with the first release in order. Within one decision addresses
// are only taken, so a release that was passed over is not looked at again.
func (a *assigner) nextReleased(pool *supply, family lb.Family) (netip.Addr, bool) {
	first := pool.passed[family]
	for _, r := range pool.released[family][first:] {
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
	byPool := a.releasesByPool()

	var next time.Time
	for i := range usages {
		u := &usages[i]
		p := &a.state.Pools[i]
		releases := byPool[p.Name]
		forgotten := max(0, len(releases)-maxReleases)
		u.ReleasedForgotten = p.ReleasedForgotten + int64(forgotten)
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

// releasesByPool returns the releases of addresses that are not held. The pool that an address lies in records its
// release, else its former pool.
func (a *assigner) releasesByPool() map[string][]releaseRecord {
	out := map[string][]releaseRecord{}
	for addr, r := range a.releases.byAddress {
		if a.holders[addr].isHeld() {
			continue
		}

		s := a.index.Find(addr)
		if s != nil {
			r.pool = s.Name
		}

		out[r.pool] = append(out[r.pool], r)
	}

	return out
}

// handOver keeps the releases of addresses that lie in another pool now, until that pool has recorded them: the
// controller may end between the two writes.
func (a *assigner) handOver(usages []Usage) {
	for i := range usages {
		u := &usages[i]
		for _, r := range a.state.Pools[i].Released {
			if len(u.Released) == maxReleases {
				break
			}

			to := a.index.Find(r.Address)
			isElsewhere := to != nil && to.index != i
			last := a.releases.byAddress[r.Address].Release
			isSuperseded := r.Time.Before(last.Time)
			if !isElsewhere || isSuperseded {
				continue
			}

			isRecorded := recordsRelease(to.Released, last)
			willBeRecorded := recordsRelease(usages[to.index].Released, last)
			if willBeRecorded && !isRecorded {
				u.Released = append(u.Released, last)
				u.HandOver++
			}
		}
	}
}

// recordsRelease reports whether a list has the release, or a later one of the same address.
func recordsRelease(list []lb.Release, r lb.Release) bool {
	return slices.ContainsFunc(list, func(o lb.Release) bool {
		return o.Address == r.Address && !o.Time.Before(r.Time)
	})
}

// selectReleases returns the releases that a pool records, latest first. It prefers the latest releases of each
// namespace, so that no namespace displaces the releases of another.
func selectReleases(releases []releaseRecord) []releaseRecord {
	slices.SortFunc(releases, latestFirst)

	count := map[string]int{}
	rank := make(map[netip.Addr]int, len(releases)) // within the namespace
	for _, r := range releases {
		namespace := r.Holder.Namespace
		rank[r.Address] = count[namespace]
		count[namespace]++
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
	record := func(r lb.Release, pool string) {
		last, ok := a.releases.byAddress[r.Address]
		isRecorded := ok && last.Holder == r.Holder && last.UID == r.UID
		if isNew[r.Address] || isRecorded || a.holders[r.Address].isHeld() {
			return
		}

		isNew[r.Address] = true
		r.Time = a.state.Now
		a.releases.byAddress[r.Address] = releaseRecord{
			Release: r,
			pool:    pool,
		}
	}

	for _, s := range slices.Concat(a.floating, a.services) {
		for addr, isShown := range s.former {
			if s.holds(addr) {
				continue
			}

			_, isRecorded := a.releases.byAddress[addr]
			mustRecord := isShown || !isRecorded
			if !mustRecord {
				continue
			}

			release := lb.Release{
				Address: addr,
				Holder:  s.Key,
				UID:     s.UID,
			}
			pool := s.Record.Of(addr).Pool
			record(release, pool)
		}
	}

	for _, l := range a.state.Leaving {
		for _, addr := range l.Addresses {
			release := lb.Release{
				Address: addr,
				Holder:  l.Key,
				UID:     l.UID,
			}
			record(release, "")
		}
	}
}
