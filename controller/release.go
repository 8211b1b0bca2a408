package main

import (
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
)

// pools returns the pools that must record a release of this decision, and the others.
// Such a release has the time of the decision and comes first.
func (d *decision) pools() (giving, others []*v1beta1.IPAddressPool) {
	latest := map[string]time.Time{}
	for _, u := range d.result.Pools {
		if len(u.Released) > 0 {
			latest[u.Pool] = u.Released[0].Time
		}
	}
	for _, p := range d.objects.Pools {
		if latest[p.Name].Equal(d.state.Now) {
			giving = append(giving, p)
		} else {
			others = append(others, p)
		}
	}
	return giving, others
}

// loses reports whether the status shows an address that the Service must give up.
func (w serviceWrite) loses() bool {
	return slices.ContainsFunc(w.service.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool {
		a, err := netip.ParseAddr(in.IP)
		return err == nil && !slices.Contains(w.assignment.Addresses, a)
	})
}

// loses reports whether the status shows an address that the FloatingIP must give up.
func (w floatingWrite) loses() bool {
	held := texts(w.owned.Addresses)
	return slices.ContainsFunc(w.object.Status.Addresses, func(a string) bool { return !slices.Contains(held, a) })
}
