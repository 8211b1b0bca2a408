package main

import (
	"net/netip"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// proxyPods adds to the proxies of this node what each of them serves. They serve nothing while the kernel refuses the
// table that leads to them. It reports false while their first answers are awaited.
func (w *syncer) proxyPods(pods []lb.ProxyPod) (out []lb.ProxyPod, settled bool) {
	var here []lb.ProxyPod
	for _, pod := range pods {
		if pod.Node == w.node {
			here = append(here, pod)
		} else {
			out = append(out, pod)
		}
	}
	here, settled = w.proxies.Set(here)
	if w.divert.Failure() != nil {
		for i := range here {
			here[i].Frontends = map[lb.Key]map[uint16]uint16{}
		}
	}
	return append(out, here...), settled
}

// ownProxies returns the addresses of the proxies of this node.
func (w *syncer) ownProxies(pods []lb.ProxyPod) (out []netip.Addr) {
	for _, pod := range pods {
		if pod.Node == w.node {
			out = append(out, pod.Addresses...)
		}
	}
	return out
}
