package main

import (
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
)

// pools returns those that are to remember an address given back just now, and the others.
// Such a release bears the time of the decision, and is the latest.
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

// loses reports whether the status shows an address that the Service is not to hold any more.
func (w serviceWrite) loses() bool {
	return slices.ContainsFunc(w.service.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool {
		a, err := netip.ParseAddr(in.IP)
		return err == nil && !slices.Contains(w.assignment.Addresses, a)
	})
}

// loses reports whether the status shows an address that the FloatingIP is not to own any more.
func (w floatingWrite) loses() bool {
	held := texts(w.owned.Addresses)
	return slices.ContainsFunc(w.object.Status.Addresses, func(a string) bool { return !slices.Contains(held, a) })
}
