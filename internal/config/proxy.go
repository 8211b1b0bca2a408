package config

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

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
	// MaxNamespaces bounds the namespaces with proxied Services: each has an HAProxy of its own in every proxy.
	MaxNamespaces int
	// MaxServices bounds the proxied Services of a namespace, and by it their ports, endpoints and source ranges;
	// 0 is no bound.
	MaxServices int
	// MaxIdle bounds the idle times of connections, which keep a former process of HAProxy.
	MaxIdle time.Duration
	// Defaults are settings by their annotations' names without the prefix, for Services without these annotations.
	Defaults map[string]string
}

// What a namespace may have for each Service of MaxServices, all its proxied Services together. HAProxy needs 6.6 KiB
// for an endpoint, 20 for a port, and 0.1 for a source range.
const (
	proxiedPorts     = 4
	proxiedEndpoints = 20
	proxiedRanges    = 200
)

// maxProxied returns a bound for a namespace, so many for each of its Services; no bound if there is none of Services.
func (p ProxyOptions) maxProxied(each int) int {
	if p.MaxServices == 0 {
		return math.MaxInt
	}
	return each * p.MaxServices
}

// Proxies reports whether a Service can be proxied: no node leads packets to a proxy ahead of another data path than
// kube-proxy's.
func (opt Options) Proxies() bool { return opt.Proxy.Service != (lb.Key{}) && !opt.OtherDataPath }

// hasProxied reports whether proxies serve a Service by its status, where no tenant writes.
func hasProxied(o *corev1.Service) bool {
	return apimeta.IsStatusConditionTrue(o.Status.Conditions, v1beta1.ConditionProxied)
}

// admitProxies refuses proxies to Services of namespaces that may not have them, and to those beyond the bounds of
// namespaces, and of a namespace's share. Services that are proxied come before those that ask, and then the older ones.
func (opt Options) admitProxies(r *report, services []*lb.Service, namespaces map[string]map[string]string) {
	if !opt.Proxies() {
		return
	}
	asking := map[string][]*lb.Service{}
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
		asking[s.Key.Namespace] = append(asking[s.Key.Namespace], s)
	}

	var first []*lb.Service
	for _, all := range asking {
		slices.SortFunc(all, proxiedFirst)
		first = append(first, all[0])
	}
	slices.SortFunc(first, proxiedFirst)

	for i, s := range first {
		if i < opt.Proxy.MaxNamespaces || opt.Proxy.MaxNamespaces == 0 {
			opt.Proxy.admitShare(r, asking[s.Key.Namespace])
			continue
		}
		for _, s := range asking[s.Key.Namespace] {
			refuseProxy(r, s, fmt.Sprintf(
				"%d namespaces have Services that are proxied, as many as may (proxy.maxNamespaces of the chart)",
				opt.Proxy.MaxNamespaces))
		}
	}
}

// proxiedFirst orders Services that are proxied before those that ask, and older ones before newer ones.
func proxiedFirst(a, b *lb.Service) int {
	if a.Proxied != b.Proxied {
		if a.Proxied {
			return -1
		}
		return 1
	}
	return older(a, b)
}

// admitShare refuses proxies to the Services of one namespace, in order, that do not fit its share.
func (p ProxyOptions) admitShare(r *report, all []*lb.Service) {
	services, ports, ranges := 0, 0, 0
	for _, s := range all {
		moreRanges := len(s.Allow) + len(s.Deny)
		if p.MaxServices > 0 && services == p.MaxServices {
			refuseProxy(r, s, fmt.Sprintf("%d Services of namespace %s ask for proxies, and %d may have them: those that are proxied, "+
				"and the oldest (proxy.maxServicesPerNamespace of the chart)", len(all), s.Key.Namespace, p.MaxServices))
			continue
		}
		if ports+len(s.Ports) > p.maxProxied(proxiedPorts) || ranges+moreRanges > p.maxProxied(proxiedRanges) {
			refuseProxy(r, s, fmt.Sprintf("with its %d ports and %d source ranges the proxied Services of namespace %s have more than %d "+
				"ports or %d ranges (%d and %d for each of proxy.maxServicesPerNamespace of the chart)",
				len(s.Ports), moreRanges, s.Key.Namespace,
				p.maxProxied(proxiedPorts), p.maxProxied(proxiedRanges), proxiedPorts, proxiedRanges))
			continue
		}
		services++
		ports += len(s.Ports)
		ranges += moreRanges
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
