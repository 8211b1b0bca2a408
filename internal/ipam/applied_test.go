package ipam

import (
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
		svc.Record, svc.Recall = a.Record, wish(a.Record, a.Awaits)
		if a.Reason != lb.ForeignAddress {
			svc.Addresses = a.Addresses
		}
	}
	for i, f := range r.FloatingIPs {
		o := &s.FloatingIPs[i]
		o.Addresses, o.BoundTo, o.BoundUID, o.Record, o.Recall = f.Addresses, f.BoundTo, f.BoundUID, f.Record, wish(f.Record, f.Awaits)
		o.Deleting = o.Deleting || f.Delete
	}
	for _, k := range r.Keep {
		if k.Refusal != "" {
			continue
		}
		s.FloatingIPs = append(s.FloatingIPs, lb.FloatingIP{Key: k.Service, Families: k.Families, Wanted: k.Addresses, ServiceName: k.Service.Name})
	}
	s.FloatingIPs = slices.DeleteFunc(s.FloatingIPs, func(f lb.FloatingIP) bool {
		return slices.ContainsFunc(r.FloatingIPs, func(o Floating) bool { return o.FloatingIP == f.Key && !o.Finalizer && !o.Delete && f.Deleting })
	})
	slices.SortFunc(s.FloatingIPs, func(a, b lb.FloatingIP) int { return a.Key.Compare(b.Key) })
	return s
}

// wish is what package config reads of the annotation that has these: the first address of each family.
func wish(record, awaits lb.Origins) lb.Origins {
	var out lb.Origins
	for _, o := range slices.Concat(record, awaits) {
		if !slices.ContainsFunc(out, func(b lb.Origin) bool { return b.Address.BitLen() == o.Address.BitLen() }) {
			out = append(out, lb.Origin{Address: o.Address, Pool: o.Pool})
		}
	}
	return out
}
