package node

import (
	"net/netip"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// splitProxies returns the proxies of this node, and the others.
func (w *Loop) splitProxies(pods []lb.ProxyPod) (here, elsewhere []lb.ProxyPod) {
	for _, pod := range pods {
		if pod.Node == w.node {
			here = append(here, pod)
		} else {
			elsewhere = append(elsewhere, pod)
		}
	}
	return here, elsewhere
}

// proxyPods adds to the proxies of this node what each of them serves. They serve nothing while the kernel refuses the
// table that leads to them. It reports false while their first answers are awaited: until then the table of an earlier
// run stays.
func (w *Loop) proxyPods(pods []lb.ProxyPod) (out []lb.ProxyPod, settled bool) {
	_, elsewhere := w.splitProxies(pods)
	here, settled := w.sources.Proxies.Pods()
	if w.sinks.Divert.Failure() != nil {
		for i := range here {
			here[i].Frontends = map[lb.Key]map[uint16]uint16{}
		}
	}
	return append(elsewhere, here...), settled
}

// ownProxies returns the addresses of the proxies of this node.
func (w *Loop) ownProxies(pods []lb.ProxyPod) (out []netip.Addr) {
	for _, pod := range pods {
		if pod.Node == w.node {
			out = append(out, pod.Addresses...)
		}
	}
	return out
}
