package ipam

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// applied is the state after the whole result was written.
func applied(s lb.State, r Result) lb.State {
	return write(s, s, r, func() bool { return true })
}

// write applies a result, decided on what the controller saw, to the cluster as
// the API server would: it rejects writes to objects that changed meanwhile, and a write
// is lost if land returns false. A Service is deleted when its releases are recorded.
func write(world, seen lb.State, r Result, land func() bool) lb.State {
	world.Services, world.FloatingIPs = slices.Clone(world.Services), slices.Clone(world.FloatingIPs)
	world.Pools, world.Leaving = slices.Clone(world.Pools), slices.Clone(world.Leaving)
	noted := true
	for i, u := range r.Pools {
		p := find(world.Pools, func(p lb.Pool) bool { return reflect.DeepEqual(p, seen.Pools[i]) })
		if p == nil || !land() {
			noted = false
			continue
		}
		p.Released, p.Retained, p.ReleasedForgotten = u.Released, u.Retained, u.ReleasedForgotten
	}
	for i, a := range r.Assignments {
		svc := find(world.Services, func(svc lb.Service) bool {
			return svc.Key == a.Service && reflect.DeepEqual(svc, seen.Services[i])
		})
		if svc != nil && land() {
			svc.AssignedFrom, svc.SharingTerms = origins(a.Origins), terms(a.Origins)
			if a.Reason != lb.ForeignAddress {
				svc.Addresses = a.Addresses
			}
		}
	}
	for i, f := range r.FloatingIPs {
		at := slices.IndexFunc(world.FloatingIPs, func(o lb.FloatingIP) bool { return reflect.DeepEqual(o, seen.FloatingIPs[i]) })
		if at < 0 || !land() {
			continue
		}
		o := &world.FloatingIPs[at]
		if o.Deleting && !f.Finalizer {
			if noted {
				world.FloatingIPs = slices.Delete(world.FloatingIPs, at, at+1)
			}
			continue
		}
		o.Addresses, o.AssignedFrom, o.BoundTo, o.BoundUID = f.Addresses, origins(f.Origins), f.BoundTo, f.BoundUID
		o.Deleting = o.Deleting || f.Delete
	}
	for _, k := range r.Keep {
		exists := slices.ContainsFunc(world.FloatingIPs, func(f lb.FloatingIP) bool { return f.Key == k.Service })
		if !exists && land() {
			world.FloatingIPs = append(world.FloatingIPs, lb.FloatingIP{Key: k.Service, Families: k.Families, Wanted: k.Addresses, ServiceName: k.Service.Name})
			slices.SortFunc(world.FloatingIPs, func(a, b lb.FloatingIP) int { return a.Key.Compare(b.Key) })
		}
	}
	world.Leaving = slices.DeleteFunc(world.Leaving, func(l lb.Leaving) bool {
		return noted && slices.ContainsFunc(seen.Leaving, func(o lb.Leaving) bool { return reflect.DeepEqual(l, o) }) && land()
	})
	return world
}

func find[T any](all []T, is func(T) bool) *T {
	if i := slices.IndexFunc(all, is); i >= 0 {
		return &all[i]
	}
	return nil
}

func origins(from []Origin) map[netip.Addr]string {
	if len(from) == 0 {
		return nil
	}
	out := map[netip.Addr]string{}
	for _, o := range from {
		out[o.Address] = o.Pool
	}
	return out
}

func terms(from []Origin) map[netip.Addr]string {
	var out map[netip.Addr]string
	for _, o := range from {
		if o.Terms == "" {
			continue
		}
		if out == nil {
			out = map[netip.Addr]string{}
		}
		out[o.Address] = o.Terms
	}
	return out
}
