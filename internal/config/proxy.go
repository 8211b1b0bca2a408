package config

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
)

// ProxyOptions are how Services get proxies.
type ProxyOptions struct {
	// Service is the headless Service of the proxies, zero if none run.
	Service lb.Key
	// Namespaces may have proxied Services if their labels match; nil matches all.
	Namespaces lb.Selector
	// MaxServices bounds the proxied Services of a namespace; 0 is no bound.
	MaxServices int
	// Defaults are settings by their annotations' names without the prefix, for Services without these annotations.
	Defaults map[string]string
}

// Proxies reports whether a Service can be proxied: no node leads packets to a proxy ahead of another data path than
// kube-proxy's.
func (opt Options) Proxies() bool { return opt.Proxy.Service != (lb.Key{}) && !opt.OtherDataPath }

// hasProxied reports whether proxies serve a Service by its status, where no tenant writes.
func hasProxied(o *corev1.Service) bool {
	return apimeta.IsStatusConditionTrue(o.Status.Conditions, v1beta1.ConditionProxied)
}

// admitProxies refuses proxies to Services of namespaces that may not have them, and to the newest of those that have
// too many.
func (opt Options) admitProxies(r *report, services []*lb.Service, namespaces map[string]map[string]string) {
	if !opt.Proxies() {
		return
	}
	byAge := map[string][]*lb.Service{}
	for _, s := range services {
		if !s.AsksProxy {
			continue
		}
		if opt.Proxy.Namespaces != nil &&
			len(namespaces) > 0 &&
			!opt.Proxy.Namespaces.Matches(namespaces[s.Key.Namespace]) {
			refuseProxy(
				r,
				s,
				"Services of namespace "+s.Key.Namespace+" may not be proxied (proxy.namespaceSelector of the chart)",
			)
			continue
		}
		byAge[s.Key.Namespace] = append(byAge[s.Key.Namespace], s)
	}
	for namespace, all := range byAge {
		if opt.Proxy.MaxServices == 0 || len(all) <= opt.Proxy.MaxServices {
			continue
		}
		slices.SortFunc(all, older)
		for _, s := range all[opt.Proxy.MaxServices:] {
			refuseProxy(
				r,
				s,
				fmt.Sprintf("%d Services of namespace %s ask for proxies, and the oldest %d may have them "+
					"(proxy.maxServicesPerNamespace of the chart)",
					len(all), namespace, opt.Proxy.MaxServices),
			)
		}
	}
}

func refuseProxy(r *report, s *lb.Service, why string) {
	s.AsksProxy, s.ProxyRefused = false, true
	r.fault(lb.Object{Kind: KindService, Namespace: s.Key.Namespace, Name: s.Key.Name}, lb.ProxyRefused, "%s", why)
}

// joinProxies puts the proxies in place of the endpoints of proxied Services. The status of Services that share an
// address is written one by one: until it agrees none of them is proxied.
func joinProxies(dependent, services []*lb.Service, proxies *whole) {
	if !slices.ContainsFunc(dependent, func(s *lb.Service) bool { return s.Proxied }) {
		return // as mostly
	}
	all := Sharers(services, func(s *lb.Service) bool { return s.Proxied || s.ProxyRefused })
	for _, s := range dependent {
		if s.Proxied = s.Proxied && all(s.Addresses); s.Proxied {
			s.Local, s.LocalByProxy, s.HealthPort = true, !s.Local, 0
			s.Backends, s.IgnoredByKubeProxy = proxies.proxyBackends(), false
		}
	}
}

// Sharers returns whether all Services are so that have one of the addresses, or share an address with such a Service.
func Sharers(services []*lb.Service, is func(*lb.Service) bool) func([]netip.Addr) bool {
	// Addresses of one Service have one root; each address leads to its root.
	parent, unlike := map[netip.Addr]netip.Addr{}, map[netip.Addr]bool{}
	root := func(a netip.Addr) netip.Addr {
		for {
			b, below := parent[a]
			if !below {
				return a
			}
			if c, deep := parent[b]; deep {
				parent[a] = c // which halves the path
			}
			a = b
		}
	}
	for i := range services {
		for _, a := range services[i].Addresses[min(1, len(services[i].Addresses)):] {
			if from, to := root(a), root(services[i].Addresses[0]); from != to {
				parent[from] = to
			}
		}
	}
	for i := range services {
		if s := services[i]; len(s.Addresses) > 0 && !is(s) {
			unlike[root(s.Addresses[0])] = true
		}
	}
	return func(addresses []netip.Addr) bool { return len(addresses) == 0 || !unlike[root(addresses[0])] }
}
