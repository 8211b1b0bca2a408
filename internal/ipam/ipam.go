package ipam

import (
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Result is the decision for every Service, FloatingIP and pool.
type Result struct {
	// Assignments has one Assignment for each of State.Services, in the same order.
	Assignments []*Assignment
	// FloatingIPs has one decision for each of State.FloatingIPs, in the same order.
	FloatingIPs []Floating
	// Keep lists the FloatingIPs to create for Services that asked to keep their addresses.
	Keep []Keep
	// Pools has one Usage for each of State.Pools, in the same order.
	Pools []Usage
	// Recheck is the time at which the next quarantine ends; zero if there is none.
	Recheck time.Time
}

// Held returns the number of addresses of a pool that are held.
func (r *Result) Held(pool string) int64 {
	for i := range r.Pools {
		if r.Pools[i].Pool == pool {
			return r.Pools[i].Held()
		}
	}

	return 0
}

// Assignment is the decision for one Service or FloatingIP.
type Assignment struct {
	Key lb.Key
	// Addresses are in the order of its families; a family without an address is left out.
	Addresses []netip.Addr
	// Pools has the name of each address's pool, or "" if the address is retained.
	Pools []string
	// Record is written to the status: for each address the terms, and the pool that the address came from, or the pool
	// that replaced it.
	Record lb.Origins
	// Awaits are the addresses that it waits for: it had them before a restore, or before it gave them up in a clash.
	// They are requested again by the annotation that also preserves the record in backups.
	Awaits lb.Origins
	// Reason is Assigned if a Service has all that it requests, and PartlyAssigned if it prefers two families and has
	// one. For a FloatingIP it is Bound or Available. Any other Reason explains why it waits, or why it holds something
	// else than it requests.
	Reason lb.Reason
	// Message explains the Reason to the user.
	Message string
}

// Equal reports whether two decisions are the same.
func (a *Assignment) Equal(b *Assignment) bool {
	return a.Key == b.Key &&
		a.Reason == b.Reason &&
		a.Message == b.Message &&
		(lb.Same(a.Addresses, b.Addresses) || slices.Equal(a.Addresses, b.Addresses)) &&
		(lb.Same(a.Record, b.Record) || slices.Equal(a.Record, b.Record)) &&
		slices.Equal(a.Pools, b.Pools) &&
		slices.Equal(a.Awaits, b.Awaits)
}

// Assign decides for all objects. Older objects come first; requests for particular addresses come before requests for
// any address.
func Assign(s lb.State) Result { return newAssigner(s).decide() }

// assigner makes one decision.
type assigner struct {
	state lb.State
	// supplies are the pools, in the order in which they are tried.
	supplies []*supply
	// index finds the pool of an address.
	index    lb.Index[*supply]
	releases releaseLog
	// isActive has the names of all pools, and reports for each whether it is not being deleted.
	isActive map[string]bool
	// holders has every address that is not free: held, about to be released, or reserved.
	holders map[netip.Addr]addressHolders
	// claimed are the addresses of State.Claims.
	claimed map[objectID][]netip.Addr

	// services are the Services in the order of the State, and byAge in the order of compareAge.
	services, byAge []*subject
	// floating are the FloatingIPs, in the order of the State.
	floating []*subject
	// shared has the held addresses for each key under which Services may share.
	shared map[string]*[]netip.Addr
	// hasLeft reports whether a holder left an address for another one since hasLeft was reset.
	hasLeft bool

	// floatingByKey are the FloatingIPs by their keys.
	floatingByKey map[lb.Key]*subject
	// dedicated are the FloatingIPs by the Service that their spec names.
	dedicated map[lb.Key][]*subject
	// quota counts the addresses of each namespace in each pool.
	quota map[quotaKey]int
}

// newAssigner returns an assigner that has read the State, and decided nothing yet.
func newAssigner(s lb.State) *assigner {
	a := &assigner{
		state:         s,
		quota:         map[quotaKey]int{},
		isActive:      map[string]bool{},
		shared:        map[string]*[]netip.Addr{},
		floatingByKey: map[lb.Key]*subject{},
		dedicated:     map[lb.Key][]*subject{},
		holders:       make(map[netip.Addr]addressHolders, len(s.Services)+len(s.Reserved)),
		claimed:       map[objectID][]netip.Addr{},
	}
	for _, p := range s.Pools {
		a.isActive[p.Name] = !p.Deleting
	}

	a.supplies = newSupplies(s.Pools)
	a.index = lb.IndexOf(a.supplies, func(s *supply) []lb.Range {
		return s.Ranges
	})
	a.releases = newReleaseLog(s, a.supplies, a.index)
	a.addSubjects()
	return a
}

// decide starts with what must not change, and ends with what may be chosen freely.
func (a *assigner) decide() Result {
	floating := slices.SortedFunc(slices.Values(a.floating), compareAge)
	a.keepAll(a.byAge, floating)

	a.hasLeft = false
	var services []*subject // that may get an address
	for _, s := range a.byAge {
		if a.mayGet(s) {
			services = append(services, s)
		}
	}

	a.assignMissingTo(services, floating)

	// A Service that left an address may have freed a quota or a port for Services before it.
	isMissing := func(s *subject) bool { return s.isMissing(perFamily{}) }
	for a.hasLeft {
		a.hasLeft = false
		a.assignAll(floating, isMissing)
		a.assignAll(services, isMissing)
	}

	return a.result()
}

// assignMissingTo gives the subjects the addresses that they are missing, most particular requests first.
//
// Services that claim a FloatingIP wait until it has all that it can get, and has left the addresses that it moves away
// from. Addresses that an annotation recalls are requests like others.
func (a *assigner) assignMissingTo(services, floating []*subject) {
	requests := func(s *subject) bool { return len(s.RequestedAddresses) > 0 }
	requestsFree := func(s *subject) bool {
		isParticular := !s.isJoining && requests(s) || a.mayRecall(s)
		return isParticular && !a.mayClaim(s)
	}
	requestsClaimed := func(s *subject) bool {
		return !s.isJoining && (a.mayClaim(s) || requests(s))
	}
	isAny := func(*subject) bool { return true }
	isJoining := func(s *subject) bool { return s.isJoining }
	isIndependent := func(s *subject) bool { return !s.isJoining }

	a.assignAll(floating, requests)
	a.assignAll(services, requestsFree)
	a.assignAll(floating, isAny)
	a.assignAll(services, requestsClaimed)
	a.assignAll(services, isIndependent)

	// Services may join other joining ones.
	for a.assignAll(services, isJoining) {
		continue
	}
}

// mayGet reports whether find may return an address for a Service: it misses one, or requests something.
func (a *assigner) mayGet(s *subject) bool {
	return s.isMissing(perFamily{}) ||
		s.Renew ||
		s.RequestedPool != "" ||
		len(s.RequestedAddresses) > 0 ||
		a.mayClaim(s)
}

// compareAge orders subjects by age, the oldest first, and subjects of the same age by key.
func compareAge(x, y *subject) int {
	c := x.Created.Compare(y.Created)
	if c != 0 {
		return c
	}
	return x.Key.Compare(y.Key)
}

// assignAll gives the chosen subjects the available addresses that they are missing. It reports whether any subject got
// one.
func (a *assigner) assignAll(order []*subject, isChosen func(*subject) bool) bool {
	hasAny := false
	for _, s := range order {
		if isChosen(s) && a.assignMissing(s) {
			hasAny = true
		}
	}

	return hasAny
}

// assignMissing gives a subject the available addresses that it is missing. It reports whether the subject got one.
func (a *assigner) assignMissing(s *subject) bool {
	if s.fip != nil && s.fip.Deleting {
		return false
	}

	hasAny := false
	got, _ := a.find(s)
	for f, addr := range got {
		if !addr.IsValid() {
			continue
		}

		a.moveOut(s, s.held[f])
		s.held[f] = addr
		a.addHolder(s, addr)
		hasAny = true
	}

	return hasAny
}

// result returns the Result. It is called after all decisions, so that messages refer to the final holders.
func (a *assigner) result() Result {
	r := Result{Assignments: make([]*Assignment, len(a.services))}
	all := make([]Assignment, len(a.services))
	for i, s := range a.services {
		all[i] = a.assignment(s)
		r.Assignments[i] = &all[i]
	}

	for _, s := range a.floating {
		r.FloatingIPs = append(r.FloatingIPs, a.floatingResult(s))
	}

	r.Keep = a.floatingIPsToCreate()
	r.Pools = a.usage()
	r.Recheck = a.writeReleases(r.Pools)
	return r
}
