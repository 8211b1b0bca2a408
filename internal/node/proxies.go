package node

import (
	"net/netip"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// splitProxies returns the proxies of a node, and the others.
func splitProxies(pods []lb.ProxyPod, node string) (here, elsewhere []lb.ProxyPod) {
	for _, pod := range pods {
		if pod.Node == node {
			here = append(here, pod)
		} else {
			elsewhere = append(elsewhere, pod)
		}
	}
	return here, elsewhere
}

// proxyAddresses returns the addresses of the proxies of a node.
func proxyAddresses(pods []lb.ProxyPod, node string) (out []netip.Addr) {
	here, _ := splitProxies(pods, node)
	for _, pod := range here {
		out = append(out, pod.Addresses...)
	}
	return out
}
