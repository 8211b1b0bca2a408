package ipam

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// world has the objects in the API server. Lists are copied before a change, because caches show old ones.
type world struct {
	// Objects are ordered by key.
	Services    []serviceObject
	Pools       []poolObject
	FloatingIPs []floatingObject
	Namespaces  map[string]map[string]string
	// Reserved are addresses in the statuses of Services that were never ours.
	Reserved map[netip.Addr]lb.Key
	// Claims are a controller's writes without an answer.
	Claims []lb.Claim
}

// serviceObject is a Service of any type. Its resourceVersion is the number of the world in which it became what it is.
type serviceObject struct {
	lb.Service
	version int
	// served reports whether it is of type LoadBalancer and of our class, foreign whether it is of another class.
	served, foreign     bool
	deleting, finalizer bool
	// condition is the status of the condition on its addresses; "" is none.
	condition string
}

type poolObject struct {
	lb.Pool
	version int
	// age orders pools: of two with the same address the older keeps it, but an active pool comes before one being
	// deleted.
	age       int
	finalizer bool
}

// floatingObject is a FloatingIP; its Wanted are the addresses in the spec.
type floatingObject struct {
	lb.FloatingIP
	version   int
	finalizer bool
}

type object interface {
	id() lb.Key
	uid() string
	at() int
}

func (o serviceObject) id() lb.Key  { return o.Key }
func (o poolObject) id() lb.Key     { return lb.Key{Name: o.Name} }
func (o floatingObject) id() lb.Key { return o.Key }

func (o serviceObject) uid() string  { return o.Key.String() } // no name comes twice
func (o poolObject) uid() string     { return o.Name }
func (o floatingObject) uid() string { return o.UID }

func (o serviceObject) at() int  { return o.version }
func (o poolObject) at() int     { return o.version }
func (o floatingObject) at() int { return o.version }

func byID[T object](a, b T) int { return a.id().Compare(b.id()) }

func get[T object](list []T, id lb.Key) *T {
	if i, found := slices.BinarySearchFunc(list, id, func(o T, id lb.Key) int { return o.id().Compare(id) }); found {
		return &list[i]
	}
	return nil
}

func (w world) clone() world {
	w.Services, w.Pools, w.FloatingIPs = slices.Clone(w.Services), slices.Clone(w.Pools), slices.Clone(w.FloatingIPs)
	return w
}

// stamp gives changed objects a new version.
func (w *world) stamp(before *world, version int) {
	stamped(w.Services, before.Services, func(o *serviceObject) { o.version = version })
	stamped(w.Pools, before.Pools, func(o *poolObject) { o.version = version })
	stamped(w.FloatingIPs, before.FloatingIPs, func(o *floatingObject) { o.version = version })
}

func stamped[T object](list, before []T, set func(*T)) {
	for i := range list {
		if old := get(before, list[i].id()); old == nil || !reflect.DeepEqual(*old, list[i]) {
			set(&list[i])
		}
	}
}

// compile reads the objects as package config does.
func (w world) compile(at time.Time) lb.State {
	s := lb.State{
		Now: at, Namespaces: w.Namespaces, Reserved: maps.Clone(w.Reserved), Claims: w.Claims,
		NotServed: map[lb.Key]string{},
	}
	for _, o := range w.Services {
		if o.served && !o.deleting {
			s.Services = append(s.Services, &o.Service)
			continue
		}
		if !o.deleting {
			s.NotServed[o.Key] = o.UID
		}
		shown, others := o.shown()
		for _, addr := range others {
			if s.Reserved == nil {
				s.Reserved = map[netip.Addr]lb.Key{}
			}
			if _, taken := s.Reserved[addr]; !taken {
				s.Reserved[addr] = o.Key
			}
		}
		if left := o.leaves(shown); len(left) > 0 {
			s.Leaving = append(s.Leaving, lb.Leaving{Key: o.Key, UID: o.UID, Addresses: left})
		}
	}
	for _, o := range w.FloatingIPs {
		f := o.FloatingIP
		f.ServiceGone = f.ServiceName != "" && get(w.Services, lb.Key{Namespace: f.Key.Namespace, Name: f.ServiceName}) == nil
		f.Wanted = slices.Concat(f.Wanted, w.lost(f))
		s.FloatingIPs = append(s.FloatingIPs, f)
	}
	s.Pools = disjoint(slices.SortedFunc(slices.Values(w.Pools), func(a, b poolObject) int {
		return cmp.Or(int(change(b.Deleting, a.Deleting)), a.age-b.age, byID(a, b))
	}))
	return s
}

// shown splits the addresses in the status of a Service that we do not serve into ours and others.
func (o *serviceObject) shown() (ours, others []netip.Addr) {
	for _, addr := range o.Addresses {
		if !o.foreign || o.finalizer && o.Record.Of(addr).Pool != "" {
			ours = append(ours, addr)
		} else {
			others = append(others, addr)
		}
	}
	return ours, others
}

// leaves returns what a Service that we do not serve must lose, with these in its status: the change of a type empties
// it.
func (o *serviceObject) leaves(shown []netip.Addr) []netip.Addr {
	out := slices.Clone(shown)
	for _, origin := range o.Record {
		if origin.Terms != lb.TermsReleased && !slices.Contains(out, origin.Address) {
			out = append(out, origin.Address)
		}
	}
	return out
}

// lost returns the addresses that the annotation of a FloatingIP recalls.
func (w *world) lost(f lb.FloatingIP) []netip.Addr {
	var out []netip.Addr
	for _, had := range f.Recall {
		same := func(a netip.Addr) bool { return a.BitLen() == had.Address.BitLen() }
		known := slices.ContainsFunc(slices.Concat(f.Wanted, f.Addresses), same)
		fromPool := f.Pool == "" || f.Pool == had.Pool || w.answers(had.Pool, f.Pool)
		if !known && slices.Contains(f.Families, lb.FamilyOf(had.Address)) && fromPool {
			out = append(out, had.Address)
		}
	}
	return out
}

// answers reports whether the pool of the first name answers to the second one.
func (w *world) answers(pool, name string) bool {
	p := get(w.Pools, lb.Key{Name: pool})
	return p != nil && answers(&p.Pool, name)
}

// disjoint returns the pools. A cache may show an older and a newer pool with the same address; it belongs to the first
// then.
func disjoint(objects []poolObject) []lb.Pool {
	taken := map[netip.Addr]bool{}
	var out []lb.Pool
	for _, o := range objects {
		p := o.Pool
		p.Ranges = nil
		for _, r := range o.Ranges {
			var own []netip.Addr
			n := 0
			for addr := r.From; r.Contains(addr); addr = addr.Next() {
				n++
				if !taken[addr] {
					taken[addr], own = true, append(own, addr)
				}
			}
			if len(own) == n {
				p.Ranges = append(p.Ranges, r)
				continue
			}
			for _, addr := range own {
				p.Ranges = append(p.Ranges, lb.Range{From: addr, To: addr})
			}
		}
		p.Withheld = slices.DeleteFunc(slices.Clone(p.Withheld), func(w lb.Owned[string]) bool {
			return !slices.ContainsFunc(p.Ranges, func(r lb.Range) bool { return r.Contains(w.From) && r.Contains(w.To) })
		})
		out = append(out, p)
	}
	return out
}

func find[T any](all []T, match func(T) bool) *T {
	if i := slices.IndexFunc(all, match); i >= 0 {
		return &all[i]
	}
	return nil
}

// applied is the state after the whole result was written.
func applied(s lb.State, r Result) lb.State {
	s.Services = slices.Clone(s.Services)
	s.FloatingIPs = slices.Clone(s.FloatingIPs)
	s.Pools = slices.Clone(s.Pools)
	s.Leaving = nil
	s.Claims = nil
	for i, u := range r.Pools {
		p := &s.Pools[i]
		p.Released, p.Retained, p.ReleasedForgotten = u.Released, u.Retained, u.ReleasedForgotten
	}
	for i, a := range r.Assignments {
		svc := new(*s.Services[i])
		s.Services[i] = svc
		svc.Record, svc.Recall = a.Record, wish(a.Record, a.Awaits)
		if a.Reason != lb.ForeignAddress {
			svc.Addresses = a.Addresses
		}
	}
	for i, f := range r.FloatingIPs {
		o := &s.FloatingIPs[i]
		o.Addresses = f.Addresses
		o.BoundTo = f.BoundTo
		o.BoundUID = f.BoundUID
		o.Record = f.Record
		o.Recall = wish(f.Record, f.Awaits)
		o.Deleting = o.Deleting || f.Delete
	}
	for _, k := range r.Keep {
		if k.Refusal != "" {
			continue
		}
		s.FloatingIPs = append(s.FloatingIPs,
			lb.FloatingIP{Key: k.Service, Families: familiesOf(k.Addresses), Wanted: k.Addresses, ServiceName: k.Service.Name})
	}
	s.FloatingIPs = slices.DeleteFunc(s.FloatingIPs, func(f lb.FloatingIP) bool {
		return slices.ContainsFunc(r.FloatingIPs,
			func(o Floating) bool { return o.Key == f.Key && len(o.Addresses) == 0 && !o.Delete && f.Deleting })
	})
	slices.SortFunc(s.FloatingIPs, func(a, b lb.FloatingIP) int { return a.Key.Compare(b.Key) })
	return s
}

// wish returns what package config reads from the annotation with these: the first address of each family.
func wish(record, awaits lb.Origins) lb.Origins {
	var out lb.Origins
	for _, o := range slices.Concat(record, awaits) {
		if !slices.ContainsFunc(out, func(b lb.Origin) bool { return b.Address.BitLen() == o.Address.BitLen() }) {
			out = append(out, lb.Origin{Address: o.Address, Pool: o.Pool})
		}
	}
	return out
}

// familiesOf returns the families of a FloatingIP whose spec has addresses only.
func familiesOf(addresses []netip.Addr) (out []lb.Family) {
	for _, addr := range addresses {
		out = append(out, lb.FamilyOf(addr))
	}
	return out
}
