package config

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// proxyPods returns the proxies that serve, from the slices of their Service. They are ordered by name.
func (opt Options) proxyPods(proxies endpointList) (out []lb.ProxyPod) {
	if !opt.Proxies() {
		return nil
	}

	pods := map[string]*lb.ProxyPod{}
	for _, p := range proxies {
		for _, e := range p.slice.Endpoints {
			node := valueOr(e.NodeName, "")
			if readinessOf(e.Conditions) == idle || node == "" || e.TargetRef == nil {
				continue
			}
			if len(e.Addresses) == 0 {
				continue
			}

			a, err := netip.ParseAddr(e.Addresses[0]) // the others have no meaning (discovery/v1)
			if err != nil {
				continue
			}

			isReady := valueOr(e.Conditions.Ready, true)
			pod := pods[e.TargetRef.Name]
			if pod == nil {
				pod = &lb.ProxyPod{
					Name:  e.TargetRef.Name,
					Node:  node,
					Ready: isReady,
				}
				pods[pod.Name] = pod
			}
			// The slices of the two families may show different moments.
			pod.Ready = pod.Ready && isReady
			addFamily(pod, a)
		}
	}

	for _, name := range slices.Sorted(maps.Keys(pods)) {
		out = append(out, *pods[name])
	}

	return out
}

// addFamily adds an address to a proxy that has none of its family.
func addFamily(pod *lb.ProxyPod, a netip.Addr) {
	isSameFamily := func(b netip.Addr) bool { return b.Is4() == a.Is4() }
	if slices.ContainsFunc(pod.Addresses, isSameFamily) {
		return
	}

	pod.Addresses = append(pod.Addresses, a)
	slices.SortFunc(pod.Addresses, netip.Addr.Compare)
}
