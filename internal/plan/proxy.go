package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// An address of a proxied Service finds a proxy as an address of a Service with externalTrafficPolicy Local finds a
// pod: the nodes of ready proxies may announce it. Nodes say which namespaces their proxies do not serve, and rank
// behind others for these. What the others cannot know, whether the proxy of this node serves one Service already,
// withholds its addresses here. A Service is led by the ports that the proxy has; others are refused. What this node
// and its pods send goes to a proxy on another node, if there is none here; what comes from outside is refused then.

// proxyOf returns the proxy to which this node leads connections to an address of a proxied Service, nil for none: its
// own that serves the Service, even if it terminates, else a ready one elsewhere, on a living node if possible. The
// choice among several depends on their names and the address alone.
func (g *group) proxyOf(s *lb.Service, a netip.Addr) (chosen *lb.ProxyPod) {
	var rank int
	var points uint64
	for i := range g.in.proxies {
		pod := &g.in.proxies[i]
		of := g.proxyRank(pod, s)
		to := sameFamily(pod.Addresses, a)
		if of < 0 || !to.IsValid() {
			continue
		}

		sc := score(hashString(pod.Name), hashAddress(a))
		better := cmp.Or(
			cmp.Compare(of, rank),
			cmp.Compare(sc, points),
		)
		if chosen == nil || better > 0 {
			chosen, rank, points = pod, of, sc
		}
	}

	return chosen
}

// proxyRank returns the rank of a proxy for a Service on this node; -1 if it may not serve the Service there.
func (c *common) proxyRank(pod *lb.ProxyPod, s *lb.Service) int {
	isOwn := pod.Node == c.node
	switch {
	case isOwn && !serves(pod, s):
		return -1
	case !isOwn && !pod.Ready:
		return -1
	case isOwn && pod.Ready:
		return 3
	case isOwn:
		return 2
	case c.state.Members[pod.Node]:
		return 1
	}

	return 0
}

// serves reports whether a proxy serves a port of a Service, as far as this node knows.
func serves(pod *lb.ProxyPod, s *lb.Service) bool {
	isServed := func(p lb.Port) bool {
		return proxiable(p) && pod.Has(s, p)
	}
	return slices.ContainsFunc(s.Ports, isServed)
}

// servesAll reports whether a proxy serves all ports of a Service, as far as this node knows.
func servesAll(pod *lb.ProxyPod, s *lb.Service) bool {
	isUnserved := func(p lb.Port) bool {
		return !proxiable(p) || !pod.Has(s, p)
	}
	return !slices.ContainsFunc(s.Ports, isUnserved)
}

// lacksNamespace reports whether a node says that its proxies do not serve the namespace of a proxied Service.
func (c *common) lacksNamespace(node string, s *lb.Service) bool {
	lacks := c.state.LacksProxy[node]
	return s.Proxied &&
		len(lacks) > 0 &&
		slices.Contains(lacks, lb.NamespaceHash(s.Key.Namespace))
}

// proxiable reports whether proxies can serve a port.
func proxiable(p lb.Port) bool {
	return p.Protocol == "TCP" && p.NodePort != 0
}

// proxiedHere reports whether a proxy of this node serves a proxied Service at an address.
func (g *group) proxiedHere(s *lb.Service, a netip.Addr) bool {
	pod := g.proxyOf(s, a)
	return pod != nil && pod.Node == g.node
}

// lacksProxy reports whether a Service is proxied and no proxy of this node serves it at any of its addresses.
func (g *group) lacksProxy(s *lb.Service) bool {
	isHere := func(a netip.Addr) bool {
		return g.proxiedHere(s, a)
	}
	return s.Proxied && !slices.ContainsFunc(s.Addresses, isHere)
}

// missesProxy reports whether a Service is proxied and no proxy of this node serves it at one of its addresses.
func (g *group) missesProxy(s *lb.Service) bool {
	isElsewhere := func(a netip.Addr) bool {
		return !g.proxiedHere(s, a)
	}
	return s.Proxied && slices.ContainsFunc(s.Addresses, isElsewhere)
}

// ways are what a node does for the proxied Services of a group.
type ways struct {
	diversions []lb.Diversion
	// nodePorts are closed.
	nodePorts []uint16
	// proxied are the Services that proxies of this node serve.
	proxied []lb.Key
}

// divert plans where connections to proxied Services go on this node, which node ports it refuses, and which Services
// its own proxies serve, in force or not. As kube-proxy does, it goes on for Services that leave.
func (g *group) divert() {
	if !g.Proxied {
		return
	}

	g.ways = &ways{}
	for s := range served(g.Group) {
		if !s.Proxied {
			continue
		}
		for _, port := range slices.Concat(s.Ports, s.Unserved) {
			if proxiable(port) {
				g.ways.nodePorts = append(g.ways.nodePorts, port.NodePort)
			}
		}
		for _, a := range s.Addresses {
			g.divertAddress(s, a)
		}
	}

	for _, s := range g.Services {
		if s.Proxy != nil && g.readyHere(s) {
			g.ways.proxied = append(g.ways.proxied, s.Key)
		}
	}
}

// divertAddress plans where connections to an address of a proxied Service go.
func (g *group) divertAddress(s *lb.Service, a netip.Addr) {
	pod := g.proxyOf(s, a)
	if pod == nil || g.known(a).isOnLink {
		return
	}

	to := sameFamily(pod.Addresses, a)
	for _, port := range s.Ports {
		if !proxiable(port) || !pod.Has(s, port) {
			continue
		}
		one := lb.Diversion{
			Address: a,
			Port:    port.Port,
			To:      netip.AddrPortFrom(to, port.NodePort),
			Remote:  pod.Node != g.node,
		}
		g.ways.diversions = append(g.ways.diversions, one)
	}
}

// diversions are ordered, one for each frontend, the first. Two Services have one frontend only if another program
// wrote a status.
func diversions(all []lb.Diversion) []lb.Diversion {
	order := func(a, b lb.Diversion) int {
		return cmp.Or(
			a.Address.Compare(b.Address),
			cmp.Compare(a.Port, b.Port),
		)
	}
	slices.SortStableFunc(all, order)
	return slices.CompactFunc(all, func(a, b lb.Diversion) bool {
		return order(a, b) == 0
	})
}

// Entering returns the diversions of a plan, and the ways of the last plan that end with it. Ways to proxies of other
// nodes wait for the plan's filter, which keeps from them what comes from outside: no answer to it would come back
// through this node.
func (p Plan) Entering(last Plan, isFiltered bool) []lb.Diversion {
	all := slices.Clone(p.Diversions)
	if !isFiltered {
		all = slices.DeleteFunc(all, func(d lb.Diversion) bool {
			return d.Remote
		})
	}
	return diversions(append(all, last.Diversions...))
}

// readyHere reports whether ready proxies of this node serve a Service in the families of all its addresses, or in any
// before it has one.
func (g *group) readyHere(s *lb.Service) bool {
	isReady := func(pod lb.ProxyPod) bool {
		return pod.Ready &&
			pod.Node == g.node &&
			servesAll(&pod, s)
	}
	isUnserved := func(a netip.Addr) bool {
		serves := func(pod lb.ProxyPod) bool {
			return isReady(pod) && sameFamily(pod.Addresses, a).IsValid()
		}
		return !slices.ContainsFunc(g.in.proxies, serves)
	}
	if !slices.ContainsFunc(g.in.proxies, isReady) {
		return false
	}

	return !slices.ContainsFunc(s.Addresses, isUnserved)
}

// noProxy returns the sentence on a proxied Service that no node announces because no proxy is where it should be; ""
// if that is not why. barring are the nodes that may announce its addresses but for a proxy.
func noProxy(
	s *lb.Service,
	f lb.Family,
	why lb.Reason,
	barring []string,
) string {
	switch {
	case why == lb.NoServingEndpoint:
		return "no proxy is ready, so that no node may announce the addresses: look at the pods of the Deployment " +
			"of the proxies"
	case len(barring) > 0:
		return fmt.Sprintf("proxies run on %s, and the address may be announced from %s",
			lb.SomeOf(s.ServingNodes(f)), lb.SomeOf(barring))
	}

	return ""
}
