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

// proxyOf returns the proxy to which a node leads connections to an address of a proxied Service, nil for none: its own
// that serves the Service, even if it terminates, else a ready one elsewhere, on a living node if possible. The choice
// among several depends on their names and the address alone.
func proxyOf(s *lb.State, node string, sv *lb.Service, a netip.Addr) (chosen *lb.ProxyPod) {
	var rank, points uint64
	for i := range s.ProxyPods {
		pod, of := &s.ProxyPods[i], uint64(0)
		switch own := pod.Node == node; {
		case !sameFamily(pod.Addresses, a).IsValid() || own && !serves(pod, sv) || !own && !pod.Ready:
			continue
		case own && pod.Ready:
			of = 3
		case own:
			of = 2
		case s.Members[pod.Node]:
			of = 1
		}
		sc := score(hashString(pod.Name), hashAddress(a))
		if chosen == nil || cmp.Or(cmp.Compare(of, rank), cmp.Compare(sc, points)) > 0 {
			chosen, rank, points = pod, of, sc
		}
	}
	return chosen
}

// serves reports whether a proxy serves a port of a Service, as far as this node knows.
func serves(pod *lb.ProxyPod, s *lb.Service) bool {
	return slices.ContainsFunc(s.Ports, func(p lb.Port) bool { return proxiable(p) && pod.Has(s, p) })
}

// servesAll reports whether a proxy serves all ports of a Service, as far as this node knows.
func servesAll(pod *lb.ProxyPod, s *lb.Service) bool {
	return !slices.ContainsFunc(s.Ports, func(p lb.Port) bool { return !proxiable(p) || !pod.Has(s, p) })
}

// lacksNamespace reports whether a node says that its proxies do not serve the namespace of a proxied Service.
func lacksNamespace(s *lb.State, node string, sv *lb.Service) bool {
	lacks := s.LacksProxy[node]
	return sv.Proxied && len(lacks) > 0 && slices.Contains(lacks, lb.NamespaceHash(sv.Key.Namespace))
}

// proxiable reports whether proxies can serve a port.
func proxiable(p lb.Port) bool { return p.Protocol == "TCP" && p.NodePort != 0 }

// proxiedHere reports whether a proxy of this node serves a proxied Service at an address.
func proxiedHere(s *lb.State, node string, sv *lb.Service, a netip.Addr) bool {
	pod := proxyOf(s, node, sv, a)
	return pod != nil && pod.Node == node
}

// lacksProxy reports whether a Service is proxied and no proxy of this node serves it at any of its addresses.
func (p *planner) lacksProxy(s *lb.Service) bool {
	return s.Proxied &&
		!slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return proxiedHere(&p.state, p.node, s, a) })
}

// missesProxy reports whether a Service is proxied and no proxy of this node serves it at one of its addresses.
func (p *planner) missesProxy(s *lb.Service) bool {
	return s.Proxied &&
		slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return !proxiedHere(&p.state, p.node, s, a) })
}

// divert plans where connections to proxied Services go on this node, which node ports it refuses, and which Services
// its own proxies serve, in force or not. As kube-proxy does, it goes on for Services that leave.
func (p *planner) divert() {
	out := &p.plan
	if out.ClosedNodePorts, out.Diversions, out.Proxied = nil, nil, nil; p.proxied == 0 && len(p.state.Leaving) == 0 {
		return // as mostly
	}
	own := p.state.Here.Addresses
	for _, s := range served(&p.state) {
		if !s.Proxied {
			continue
		}
		for _, port := range slices.Concat(s.Ports, s.Unserved) {
			if proxiable(port) {
				out.ClosedNodePorts = append(out.ClosedNodePorts, port.NodePort)
			}
		}
		for _, a := range s.Addresses {
			pod := proxyOf(&p.state, p.node, s, a)
			if pod == nil || slices.Contains(own, a) {
				continue
			}
			for _, port := range s.Ports {
				if proxiable(port) && pod.Has(s, port) {
					to := netip.AddrPortFrom(sameFamily(pod.Addresses, a), port.NodePort)
					out.Diversions = append(
						out.Diversions,
						lb.Diversion{Address: a, Port: port.Port, To: to, Remote: pod.Node != p.node},
					)
				}
			}
		}
	}
	for _, s := range p.state.Services {
		if s.Proxy != nil && p.readyHere(s) {
			out.Proxied = append(out.Proxied, s.Key)
		}
	}
	slices.Sort(out.ClosedNodePorts)
	out.ClosedNodePorts = slices.Compact(out.ClosedNodePorts)
	out.Diversions = diversions(out.Diversions)
}

// diversions are ordered, one for each frontend, the first. Two Services have one frontend only if another program
// wrote a status.
func diversions(all []lb.Diversion) []lb.Diversion {
	order := func(a, b lb.Diversion) int { return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port)) }
	slices.SortStableFunc(all, order)
	return slices.CompactFunc(all, func(a, b lb.Diversion) bool { return order(a, b) == 0 })
}

// Entering returns the diversions of a plan, and the ways of the last plan that end with it. Ways to proxies of other
// nodes wait for the plan's filter, which keeps from them what comes from outside: no answer to it would come back
// through this node.
func (p Plan) Entering(last Plan, filtered bool) []lb.Diversion {
	ways := slices.Clone(p.Diversions)
	if !filtered {
		ways = slices.DeleteFunc(ways, func(d lb.Diversion) bool { return d.Remote })
	}
	return diversions(append(ways, last.Diversions...))
}

// readyHere reports whether ready proxies of this node serve a Service in the families of all its addresses, or in any
// before it has one.
func (p *planner) readyHere(s *lb.Service) bool {
	serve := func(a netip.Addr) bool {
		return slices.ContainsFunc(p.state.ProxyPods, func(pod lb.ProxyPod) bool {
			return pod.Ready &&
				pod.Node == p.node &&
				servesAll(&pod, s) &&
				(!a.IsValid() ||
					sameFamily(pod.Addresses, a).IsValid())
		})
	}
	return serve(netip.Addr{}) && !slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return !serve(a) })
}

// noProxy returns the sentence on a proxied Service that no node announces because no proxy is where it should be; ""
// if that is not why. barring are the nodes that may announce its addresses but for a proxy.
func noProxy(s *lb.Service, f lb.Family, why lb.Reason, barring []string) string {
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
