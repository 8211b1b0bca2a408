package config

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
)

// ProxyOptions are how Services get proxies.
type ProxyOptions struct {
	// Enabled: proxies run.
	Enabled bool
	// Service is the headless Service of the proxies.
	Service lb.Key
	// Namespaces may have proxied Services if their labels match; nil matches all.
	Namespaces lb.Selector
	// MaxServices bounds the proxied Services of a namespace; 0 is no bound.
	MaxServices int
	// Defaults are settings by their annotations' names without the prefix, for Services without these annotations.
	Defaults map[string]string
}

// Proxies reports whether a Service can be proxied: no node leads packets to a proxy ahead of another data path than kube-proxy's.
func (opt Options) Proxies() bool { return opt.Proxy.Enabled && !opt.OtherDataPath }

// hasProxied reports whether proxies serve a Service by its status, where no tenant writes.
func hasProxied(o *corev1.Service) bool {
	return apimeta.IsStatusConditionTrue(o.Status.Conditions, v1beta1.ConditionProxied)
}

// joinProxies puts the proxies in place of the endpoints of proxied Services. The status of Services that share an address is
// written one by one: until it agrees none of them is proxied.
func joinProxies(services []lb.Service, proxies endpoints) {
	if !slices.ContainsFunc(services, func(s lb.Service) bool { return s.Proxied }) {
		return // as mostly
	}
	all := Sharers(services, func(s *lb.Service) bool { return s.Proxied })
	for i := range services {
		s := &services[i]
		if s.Proxied = s.Proxied && all(s.Addresses); s.Proxied {
			s.Local, s.LocalByProxy, s.HealthPort = true, !s.Local, 0
			s.ServingNodes, s.Serving, s.ServingAnywhere = proxies.nodes, proxies.serving, proxies.anywhere
		}
	}
}

// Sharers returns whether all Services are so that have one of the addresses, or share an address with such a Service.
func Sharers(services []lb.Service, is func(*lb.Service) bool) func([]netip.Addr) bool {
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
		if s := &services[i]; len(s.Addresses) > 0 && !is(s) {
			unlike[root(s.Addresses[0])] = true
		}
	}
	return func(addresses []netip.Addr) bool { return len(addresses) == 0 || !unlike[root(addresses[0])] }
}

// setDefaults reads settings separated by commas.
func (p *ProxyOptions) setDefaults(text string) error {
	p.Defaults = map[string]string{}
	for item := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(item, "=")
		if name != "" {
			p.Defaults[name] = value
		}
	}
	return nil
}
