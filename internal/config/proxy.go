package config

import (
	"math"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
)

// ProxyOptions determine which Services get proxies.
type ProxyOptions struct {
	// Service is the headless Service of the proxies; zero if none run.
	Service lb.Key
	// Namespaces selects the namespaces that may have proxied Services; nil selects all.
	Namespaces lb.Selector
	// MaxNamespaces bounds the namespaces with proxied Services: each has an HAProxy of its own in every proxy. 0 is no
	// bound.
	MaxNamespaces int
	// MaxServices bounds the proxied Services of a namespace, and thereby their ports, endpoints and source ranges. 0
	// is no bound.
	MaxServices int
	// MaxIdle bounds the idle times of connections, because a connection keeps a former process of HAProxy running.
	MaxIdle time.Duration
	// Defaults are settings by the names of their annotations without the prefix, for Services without these
	// annotations.
	Defaults map[string]string
}

// The proxied Services of a namespace together may have so many ports, endpoints and source ranges for each Service of
// MaxServices. HAProxy needs 6.6 KiB for an endpoint, 20 KiB for a port, and 0.1 KiB for a source range.
const (
	proxiedPorts     = 4
	proxiedEndpoints = 20
	proxiedRanges    = 200
)

// maxProxied returns the bound of a namespace, given the number for each of its Services. There is no bound if the
// number of Services has none.
func (p ProxyOptions) maxProxied(each int) int {
	if p.MaxServices == 0 {
		return math.MaxInt
	}
	return each * p.MaxServices
}

// Proxies reports whether Services can be proxied: proxies must run, and kube-proxy must be the data path. Ahead of
// another data path no node can send packets to a proxy.
func (opt Options) Proxies() bool {
	return opt.Proxy.Service != (lb.Key{}) && !opt.OtherDataPath
}

// hasProxied reports whether proxies serve a Service, by its status. Tenants cannot write there.
func hasProxied(o *corev1.Service) bool {
	return apimeta.IsStatusConditionTrue(o.Status.Conditions, v1beta1.ConditionProxied)
}

// admitProxies refuses proxies to Services in namespaces that may not have them, to Services beyond the bound of
// namespaces, and to Services beyond the share of a namespace. Services that are proxied come before Services that ask,
// and older Services before newer ones. namespaces has the labels of each namespace.
func (opt Options) admitProxies(r *problemList, services []*lb.Service, namespaces map[string]map[string]string) {
	if !opt.Proxies() {
		return
	}

	asking := map[string][]*lb.Service{}
	for _, s := range services {
		if !s.AsksProxy {
			continue
		}

		namespace := s.Key.Namespace
		isSelected := opt.Proxy.Namespaces == nil ||
			len(namespaces) == 0 ||
			opt.Proxy.Namespaces.Matches(namespaces[namespace])
		if !isSelected {
			refuseProxy(r, s, "Services of namespace %s may not be proxied (proxy.namespaceSelector of the chart)",
				namespace)
			continue
		}

		asking[namespace] = append(asking[namespace], s)
	}

	var firsts []*lb.Service
	for _, all := range asking {
		slices.SortFunc(all, proxiedFirst)
		firsts = append(firsts, all[0])
	}

	slices.SortFunc(firsts, proxiedFirst)

	for i, first := range firsts {
		all := asking[first.Key.Namespace]
		isWithinBound := i < opt.Proxy.MaxNamespaces || opt.Proxy.MaxNamespaces == 0
		if isWithinBound {
			opt.Proxy.admitShare(r, all)
			continue
		}

		for _, s := range all {
			refuseProxy(r, s,
				"%d namespaces have Services that are proxied, as many as may (proxy.maxNamespaces of the chart)",
				opt.Proxy.MaxNamespaces)
		}
	}
}

// proxiedFirst orders Services that are proxied before Services that ask, and older ones before newer ones.
func proxiedFirst(a, b *lb.Service) int {
	switch {
	case a.Proxied && !b.Proxied:
		return -1
	case b.Proxied && !a.Proxied:
		return 1
	}

	return compareAge(a, b)
}

// admitShare refuses proxies to the Services of one namespace that do not fit its share. all are in order.
func (p ProxyOptions) admitShare(r *problemList, all []*lb.Service) {
	maxPorts := p.maxProxied(proxiedPorts)
	maxRanges := p.maxProxied(proxiedRanges)
	var services, ports, ranges int
	for _, s := range all {
		isFull := p.MaxServices > 0 && services == p.MaxServices
		if isFull {
			refuseProxy(r, s, "%d Services of namespace %s ask for proxies, and %d may have them: "+
				"those that are proxied, and the oldest (proxy.maxServicesPerNamespace of the chart)",
				len(all), s.Key.Namespace, p.MaxServices)
			continue
		}

		rangeCount := len(s.Allow) + len(s.Deny)
		isTooLarge := ports+len(s.Ports) > maxPorts || ranges+rangeCount > maxRanges
		if isTooLarge {
			refuseProxy(r, s, "with its %d ports and %d source ranges the proxied Services of namespace %s have "+
				"more than %d ports or %d ranges (%d and %d for each of proxy.maxServicesPerNamespace of the chart)",
				len(s.Ports), rangeCount, s.Key.Namespace, maxPorts, maxRanges, proxiedPorts, proxiedRanges)
			continue
		}

		services++
		ports += len(s.Ports)
		ranges += rangeCount
	}
}

// refuseProxy refuses proxies to a Service, and reports it.
func refuseProxy(r *problemList, s *lb.Service, format string, args ...any) {
	s.AsksProxy = false
	s.ProxyRefused = true
	r.add(ServiceObject(s.Key), lb.ProxyRefused, format, args...)
}

// joinProxies replaces the endpoints of proxied Services by the proxies. Services that share an address get their
// statuses one after the other. Until all of these agree, none of the Services is proxied.
func (c *Compiler) joinProxies(dependent, services []*lb.Service, proxies endpointList) {
	isProxied := func(s *lb.Service) bool { return s.Proxied }
	if !slices.ContainsFunc(dependent, isProxied) {
		c.groups = lb.Groups{}
		return
	}

	c.groups.Form(services, nil)
	allAgree := c.groups.Agreeing(func(s *lb.Service) bool { return s.Proxied || s.ProxyRefused })
	for _, s := range dependent {
		s.Proxied = s.Proxied && allAgree(s.Addresses)
		if !s.Proxied {
			continue
		}

		s.LocalByProxy = !s.Local
		s.Local = true
		s.HealthPort = 0
		s.Backends = proxies.proxyBackends()
		s.IgnoredByKubeProxy = false
	}
}
