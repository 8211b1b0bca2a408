package config

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// proxyPods returns the proxies that serve, from the slices of their Service.
func (opt Options) proxyPods(proxies *whole) (out []lb.ProxyPod) {
	if !opt.Proxies() || proxies == nil {
		return nil
	}
	pods := map[string]*lb.ProxyPod{}
	for _, p := range proxies.slices {
		for _, e := range p.of.Read().Endpoints {
			// Addresses beyond the first have no meaning (discovery/v1).
			if readinessOf(e.Conditions) == idle || len(e.Addresses) == 0 {
				continue
			}
			a, err := netip.ParseAddr(e.Addresses[0])
			if err != nil || valueOr(e.NodeName, "") == "" || e.TargetRef == nil {
				continue
			}
			ready, pod := valueOr(e.Conditions.Ready, true), pods[e.TargetRef.Name]
			if pod == nil {
				pod = &lb.ProxyPod{Name: e.TargetRef.Name, Node: *e.NodeName, Ready: ready}
				pods[pod.Name] = pod
			}
			if !slices.ContainsFunc(pod.Addresses, func(o netip.Addr) bool { return o.Is4() == a.Is4() }) {
				pod.Addresses = append(pod.Addresses, a)
				slices.SortFunc(pod.Addresses, netip.Addr.Compare)
			}
			// The slices of the families may be of two moments.
			pod.Ready = pod.Ready && ready
		}
	}
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		out = append(out, *pods[name])
	}
	return out
}
