package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// run is one run of a controller: its input, its decision and the outcome.
type run struct {
	*controller
	seen   world
	state  lb.State
	result Result
	// dies reports whether the process will die between two writes, and over whether it is dead, or was paused until it
	// was fenced.
	dies, over bool
	// failed reports whether a write was lost or overtaken.
	failed bool
	// silent reports whether the last write got no answer.
	silent bool
}

// carryOut writes the decision in the order in which the controller does.
func (h *history) carryOut(r *run) {
	usages := map[string]Usage{}
	var giving, others []poolObject
	for _, u := range r.result.Pools {
		usages[u.Pool] = u
	}
	for _, p := range r.seen.Pools {
		if u := usages[p.Name]; len(u.Released) > 0 && u.Released[0].Time.Equal(r.state.Now) {
			giving = append(giving, p)
		} else {
			others = append(others, p)
		}
	}
	pools := map[string]poolObject{}
	write := func(p poolObject) { pools[p.Name] = h.writePool(r, p, usages[p.Name]) }
	h.pause(r)
	each(h, r, giving, write)
	remembered := !r.failed
	loses := func(has, gets []netip.Addr) bool {
		return !remembered && slices.ContainsFunc(has, func(addr netip.Addr) bool { return !slices.Contains(gets, addr) })
	}
	each(h, r, r.result.Assignments, func(a *Assignment) {
		svc := get(r.seen.Services, a.Key)
		if !loses(svc.Addresses, a.Addresses) && !loses(replaced(&svc.Service), a.Addresses) {
			h.writeService(r, *svc, a)
		}
	})
	each(h, r, r.result.FloatingIPs, func(f Floating) {
		if o := get(r.seen.FloatingIPs, f.Key); !loses(o.Addresses, f.Addresses) {
			h.writeFloatingIP(r, *o, f)
		}
	})
	each(h, r, r.result.Keep, func(k Keep) {
		if k.Refusal == "" {
			h.create(r, k)
		}
	})
	each(h, r, others, write)
	each(h, r, slices.SortedFunc(maps.Values(pools), byID), func(p poolObject) { h.finalize(r, p, usages[p.Name]) })
	if remembered {
		each(h, r, r.seen.Services, func(o serviceObject) { h.release(r, o) })
	}
	if !r.over && h.oneIn(3) {
		r.settle(h.worlds)
	}
}

// each makes some writes, in any order. If the process dies meanwhile, some of the writes that it had begun land.
func each[T any](h *history, r *run, items []T, write func(T)) {
	if r.over {
		return
	}
	for _, i := range h.Perm(len(items)) {
		if !r.over {
			h.interrupt(r)
		}
		if r.over && (!r.dies || !h.oneIn(4)) || h.oneIn(100) {
			r.failed = true
			continue
		}
		write(items[i])
	}
}

// interrupt makes something happen between two writes.
func (h *history) interrupt(r *run) {
	switch {
	case r.dies && h.oneIn(8):
		r.over = true
	case h.oneIn(60):
		h.pause(r)
	}
}

// patch replaces an object as the API server does: only if the writer saw the present version. Some writes get no
// answer, and land or not.
func patch[T object](h *history, r *run, c *cache[T], seen, want T, set func(*T, int)) (T, bool) {
	if r.silent = false; reflect.DeepEqual(seen, want) {
		return seen, true
	}
	if r.silent = h.oneIn(40); r.silent {
		r.failed = true
	}
	if r.silent && h.oneIn(2) {
		return seen, false
	}
	if have := get(*c.list(&h.world), seen.id()); have == nil || (*have).at() != seen.at() {
		r.failed = true
		return seen, false
	}
	list := c.list(&h.world)
	*list = slices.Clone(*list)
	set(&want, len(h.worlds))
	*get(*list, seen.id()) = want
	h.worlds = append(h.worlds, h.world)
	if !r.silent {
		c.wrote(want)
	}
	return want, true
}

// writePool writes what a pool remembers, and returns the pool as it is then.
func (h *history) writePool(r *run, seen poolObject, u Usage) poolObject {
	want := seen
	want.Released, want.Retained, want.ReleasedForgotten = u.Released, u.Retained, u.ReleasedForgotten
	after, _ := patch(h, r, &r.pools, seen, want, setPoolVersion)
	return after
}

// finalize adds or removes the finalizer of a pool.
func (h *history) finalize(r *run, seen poolObject, u Usage) {
	want := seen
	want.finalizer = u.InUse(seen.Deleting)
	after, landed := patch(h, r, &r.pools, seen, want, setPoolVersion)
	if !landed || !after.Deleting || after.finalizer {
		return
	}
	h.checkGone(r, after)
	h.edit(func() { h.Pools = slices.DeleteFunc(h.Pools, func(p poolObject) bool { return p.Name == seen.Name }) })
	if !r.silent {
		r.pools.gone(after, len(h.worlds)-1)
	}
}

func setPoolVersion(o *poolObject, version int) { o.version = version }

// checkGone checks that nothing is lost with a pool that goes: the records of addresses that the run saw in another
// pool name that one, and that one has recorded their releases.
func (h *history) checkGone(r *run, gone poolObject) {
	if h.alien {
		return
	}
	w := newWitness(r.state, r.result)
	elsewhere := func(addr netip.Addr) *poolObject {
		if p := w.poolOf(addr); p != nil && p.Name != gone.Name {
			return get(h.Pools, lb.Key{Name: p.Name})
		}
		return nil
	}
	keeps := func(addr netip.Addr, key lb.Key) bool {
		return slices.Contains(w.holds[addr], key) || w.owns[addr] != nil && w.owns[addr].Key == key
	}
	check := func(key lb.Key, record lb.Origins, has []netip.Addr) {
		for _, o := range record {
			if o.Pool == gone.Name && slices.Contains(has, o.Address) && keeps(o.Address, key) && elsewhere(o.Address) != nil {
				h.fail(fmt.Errorf("pool %s is gone, and the record of %s names it for %s", gone.Name, key, o.Address))
			}
		}
	}
	held := map[netip.Addr]bool{}
	for _, o := range h.Services {
		if o.served && !o.deleting {
			check(o.Key, o.Record, o.Addresses)
		}
		for _, addr := range o.Addresses {
			held[addr] = true
		}
	}
	for _, f := range h.FloatingIPs {
		check(f.Key, f.Record, f.Addresses)
		for _, addr := range f.Addresses {
			held[addr] = true
		}
	}
	for _, release := range gone.Released {
		has := func(o lb.Release) bool { return o.Address == release.Address && !o.Time.Before(release.Time) }
		if to := elsewhere(release.Address); to != nil && !held[release.Address] && !slices.ContainsFunc(to.Released, has) {
			h.fail(fmt.Errorf("pool %s is gone, and pool %s has not recorded the release of %s", gone.Name, to.Name,
				release.Address))
		}
	}
}

func setServiceVersion(o *serviceObject, version int)   { o.version = version }
func setFloatingVersion(o *floatingObject, version int) { o.version = version }

func (h *history) writeService(r *run, seen serviceObject, a *Assignment) {
	want := seen
	want.Record, want.Recall, want.finalizer = a.Record, wish(a.Record, a.Awaits), len(a.Addresses) > 0
	if a.Reason != lb.ForeignAddress {
		want.Addresses = a.Addresses
	} else {
		want.finalizer = slices.ContainsFunc(a.Pools, func(pool string) bool { return pool != "" })
	}
	want.condition = "False"
	switch a.Reason {
	case lb.Assigned, lb.PartlyAssigned, lb.AddressKept:
		want.condition = "True"
	}
	before := h.world
	if after, landed := patch(h, r, &r.services, seen, want, setServiceVersion); landed {
		h.checkService(r, before, seen, after)
	}
	if r.silent {
		r.unanswered(objectID{seen.Key, false}, seen.version, seen.Addresses, want.Addresses)
	}
}

// writeFloatingIP writes the record and the finalizer first, and the status only if the record stood.
func (h *history) writeFloatingIP(r *run, seen floatingObject, f Floating) {
	want := seen
	if f.Delete && !seen.Deleting {
		h.deleteFloatingIP(r, seen)
		return
	}
	want.Recall = wish(f.Record, f.Awaits)
	want.finalizer = len(f.Addresses) > 0 && (seen.finalizer || !seen.Deleting)
	recorded, landed := patch(h, r, &r.floatingIPs, seen, want, setFloatingVersion)
	if r.silent {
		r.unanswered(objectID{seen.Key, true}, seen.version, seen.Addresses, f.Addresses)
		return
	}
	if !landed {
		return
	}
	if recorded.Deleting && !recorded.finalizer {
		h.removeFloatingIP(recorded)
		r.floatingIPs.gone(recorded, len(h.worlds)-1)
		return
	}
	want = recorded
	want.Addresses = f.Addresses
	want.Record = f.Record
	want.BoundTo = f.BoundTo
	want.BoundUID = f.BoundUID
	before := h.world
	if after, landed := patch(h, r, &r.floatingIPs, recorded, want, setFloatingVersion); landed {
		h.checkFloatingIP(r, before, seen, after)
	}
	if r.silent {
		r.unanswered(objectID{seen.Key, true}, recorded.version, seen.Addresses, f.Addresses)
	}
}

func (h *history) deleteFloatingIP(r *run, seen floatingObject) {
	have := get(h.FloatingIPs, seen.Key)
	switch {
	case have == nil:
	case have.version != seen.version:
		r.failed = true
	case have.finalizer:
		h.edit(func() { get(h.FloatingIPs, seen.Key).Deleting = true })
	default:
		h.removeFloatingIP(seen)
	}
}

func (h *history) removeFloatingIP(o floatingObject) {
	h.edit(func() {
		h.FloatingIPs = slices.DeleteFunc(h.FloatingIPs, func(f floatingObject) bool { return f.Key == o.Key })
	})
}

// create makes the FloatingIP of a Service that asked to keep its addresses, unless one of its name exists.
func (h *history) create(r *run, k Keep) {
	if get(h.FloatingIPs, k.Service) != nil {
		return
	}
	h.edit(func() {
		h.FloatingIPs = append(h.FloatingIPs,
			floatingObject{FloatingIP: lb.FloatingIP{Key: k.Service, UID: fmt.Sprintf("k%d", len(h.worlds)),
				Families: familiesOf(k.Addresses), Wanted: k.Addresses, ServiceName: k.Service.Name}})
		slices.SortFunc(h.FloatingIPs, byID)
	})
	r.floatingIPs.wrote(*get(h.FloatingIPs, k.Service))
}

// release clears a Service that is not ours to serve: first its status, and in a later run the rest.
func (h *history) release(r *run, seen serviceObject) {
	if seen.served && !seen.deleting || !seen.finalizer && seen.condition == "" && seen.Record == nil {
		return
	}
	shown, others := seen.shown()
	want := seen
	want.condition, want.Record = "", nil
	if len(shown) > 0 {
		want.Addresses = others
	} else {
		want.Recall, want.finalizer = nil, false
	}
	after, landed := patch(h, r, &r.services, seen, want, setServiceVersion)
	if landed && after.deleting && !after.finalizer {
		h.edit(func() {
			h.Services = slices.DeleteFunc(h.Services, func(o serviceObject) bool { return o.Key == seen.Key })
		})
		if !r.silent {
			r.services.gone(after, len(h.worlds)-1)
		}
	}
}

// checkService checks a write that landed against the objects that the API server had then: whatever the caches
// showed, it gives no address that another object has, and takes none unasked.
func (h *history) checkService(r *run, before world, seen, after serviceObject) {
	if h.alien {
		return
	}
	h.checkGiven(before, seen.Key.String(), after.Addresses, seen.Addresses,
		func(o *serviceObject) bool { return o.Key == seen.Key || r.shares(&seen.Service, o.Key) },
		func(f *floatingObject) bool { return r.lends(f.Key, &seen.Service) })
	// A FloatingIP that the run saw asked, though it may be gone since.
	asked := slices.ContainsFunc(r.state.FloatingIPs, func(f lb.FloatingIP) bool {
		return f.ServiceName == seen.Key.Name && f.Key.Namespace == seen.Key.Namespace
	})
	for _, addr := range seen.Addresses {
		if !slices.Contains(after.Addresses, addr) && modest(&seen.Service, addr) && !asked && !before.others(&seen, addr) {
			h.fail(fmt.Errorf("%s lost %s unasked, which no other object has", seen.Key, addr))
		}
	}
}

// checkFloatingIP checks the write of a FloatingIP's status.
func (h *history) checkFloatingIP(r *run, before world, seen, after floatingObject) {
	if h.alien {
		return
	}
	h.checkGiven(before, "FloatingIP "+seen.Key.String(), after.Addresses, seen.Addresses,
		func(o *serviceObject) bool { s := r.service(o.Key); return s != nil && r.lends(seen.Key, s) },
		func(f *floatingObject) bool { return f.Key == seen.Key })
}

// checkGiven checks that no object had an address that another one gets, but for those that may have it too.
func (h *history) checkGiven(before world, to string, gets, had []netip.Addr, service func(*serviceObject) bool,
	floating func(*floatingObject) bool) {
	for _, addr := range gets {
		if slices.Contains(had, addr) {
			continue
		}
		for i := range before.Services {
			if o := &before.Services[i]; o.has(addr) && !service(o) {
				h.fail(fmt.Errorf("%s was written to %s, though %s has it", addr, to, o.Key))
			}
		}
		for i := range before.FloatingIPs {
			if f := &before.FloatingIPs[i]; slices.Contains(f.Addresses, addr) && !floating(f) {
				h.fail(fmt.Errorf("%s was written to %s, though FloatingIP %s has it", addr, to, f.Key))
			}
		}
	}
}

// has reports whether clients reach the Service at the address, or did until its type was changed. A record without
// terms is of an address that it only waits for.
func (o *serviceObject) has(addr netip.Addr) bool {
	if o.served && !o.deleting {
		return slices.Contains(o.Addresses, addr)
	}
	shown, _ := o.shown()
	return slices.Contains(o.leaves(shown), addr)
}

// service returns the Service as the run saw it; nil for none.
func (r *run) service(key lb.Key) *lb.Service {
	if one := find(r.state.Services, func(o *lb.Service) bool { return o.Key == key }); one != nil {
		return *one
	}
	return nil
}

// shares reports whether the run saw a Service with which this one may share.
func (r *run) shares(svc *lb.Service, with lb.Key) bool {
	o := r.service(with)
	return o != nil && disagree(svc, o) == ""
}

// lends reports whether the run saw that the Service claims the FloatingIP.
func (r *run) lends(key lb.Key, svc *lb.Service) bool {
	for i := range r.state.FloatingIPs {
		if f := &r.state.FloatingIPs[i]; f.Key == key {
			return claimedBy(f, svc, r.result.FloatingIPs[i].Addresses...)
		}
	}
	return false
}

// modest reports whether the Service has one address of this family and asks for no other.
func modest(s *lb.Service, addr netip.Addr) bool {
	n := 0
	for _, a := range s.Addresses {
		if a.BitLen() == addr.BitLen() {
			n++
		}
	}
	policy := s.FamilyPolicy != lb.RequireDualStack || len(s.Families) == 2
	return n == 1 && policy && slices.Contains(s.Families, lb.FamilyOf(addr)) && !s.Renew && s.RequestedPool == "" &&
		len(s.RequestedAddresses) == 0 && s.FloatingIP == ""
}

// others reports whether another object has the address or asks for it.
func (w *world) others(svc *serviceObject, addr netip.Addr) bool {
	return slices.ContainsFunc(w.Services, func(o serviceObject) bool { return o.Key != svc.Key && o.has(addr) }) ||
		slices.ContainsFunc(w.FloatingIPs, func(f floatingObject) bool {
			return slices.Contains(f.Addresses, addr) || slices.Contains(f.Wanted, addr) ||
				slices.Contains(w.lost(f.FloatingIP), addr) ||
				f.ServiceName == svc.Key.Name && f.Key.Namespace == svc.Key.Namespace
		})
}

// leaves reports whether a Service that gives up the address may share it with this one as long as its status, or its
// record, shows it.
func (w *witness) leaves(addr netip.Addr, svc *lb.Service) bool {
	return slices.ContainsFunc(slices.Concat(w.stood[addr], w.replaced[addr]), func(k lb.Key) bool {
		return k != svc.Key && !slices.Contains(w.holds[addr], k) && disagree(w.services[k], svc) == ""
	})
}

// frozen returns the address of the family that the Service held or asks back, if its status shows none and the address
// must be waited for: the pool that it came from cannot be read, or would give it when reuseDelay is over.
func (w *witness) frozen(svc *lb.Service, family lb.Family) netip.Addr {
	if svc.Renew || slices.ContainsFunc(svc.Addresses, func(a netip.Addr) bool { return lb.FamilyOf(a) == family }) {
		return netip.Addr{}
	}
	for _, had := range lostOf(svc) {
		if lb.FamilyOf(had.Address) != family {
			continue
		}
		p := w.poolOf(had.Address)
		if p != nil && w.allows(p, svc, had.Address, true) && w.quarantined(p, had.Address, svc.Key) {
			return had.Address
		}
		return netip.Addr{}
	}
	return netip.Addr{}
}

// lostOf returns what the Service held by its record, or asks back by its annotation, and does not show.
func lostOf(svc *lb.Service) lb.Origins {
	return slices.DeleteFunc(slices.Concat(svc.Record, svc.Recall), func(o lb.Origin) bool {
		return o.Terms == lb.TermsReleased || slices.Contains(svc.Addresses, o.Address)
	})
}
