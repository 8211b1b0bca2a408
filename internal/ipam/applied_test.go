package ipam

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// applied is the state after the whole result was written.
func applied(s lb.State, r Result) lb.State {
	s.Services, s.FloatingIPs, s.Pools, s.Leaving = slices.Clone(s.Services), slices.Clone(s.FloatingIPs), slices.Clone(s.Pools), nil
	s.Claims = nil
	for i, u := range r.Pools {
		p := &s.Pools[i]
		p.Released, p.Retained, p.ReleasedForgotten = u.Released, u.Retained, u.ReleasedForgotten
	}
	for i, a := range r.Assignments {
		svc := &s.Services[i]
		svc.AssignedFrom, svc.SharingTerms = origins(a.Origins), terms(a.Origins)
		if a.Reason != lb.ForeignAddress {
			svc.Addresses = a.Addresses
		}
	}
	for i, f := range r.FloatingIPs {
		o := &s.FloatingIPs[i]
		o.Addresses, o.AssignedFrom, o.BoundTo, o.BoundUID = f.Addresses, origins(f.Origins), f.BoundTo, f.BoundUID
		o.Deleting = o.Deleting || f.Delete
	}
	for _, k := range r.Keep {
		s.FloatingIPs = append(s.FloatingIPs, lb.FloatingIP{Key: k.Service, Families: k.Families, Wanted: k.Addresses, ServiceName: k.Service.Name})
	}
	s.FloatingIPs = slices.DeleteFunc(s.FloatingIPs, func(f lb.FloatingIP) bool {
		return slices.ContainsFunc(r.FloatingIPs, func(o Floating) bool { return o.FloatingIP == f.Key && !o.Finalizer && !o.Delete && f.Deleting })
	})
	slices.SortFunc(s.FloatingIPs, func(a, b lb.FloatingIP) int { return a.Key.Compare(b.Key) })
	return s
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
