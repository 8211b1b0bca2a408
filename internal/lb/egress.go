package lb

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// SlicePorts is the number of ports in a PortSlice: one node has at most so many connections from one address to one
// destination port.
const SlicePorts = 4096

// PortSlice is a part of the ports of an egress address. The pods of one namespace on one node send from them, so that
// the answers to each port belong to one node, and no tenant gets answers to another.
type PortSlice struct {
	Address netip.Addr
	// First is the first of SlicePorts ports, and a multiple of SlicePorts.
	First uint16
	Node  string
	// Namespace of the pods.
	Namespace string
	// Released is when the last pod on the node was gone. It is zero while the node has pods that send from the
	// address.
	Released time.Time
}

// Last returns the last port.
func (s PortSlice) Last() uint16 { return s.First + SlicePorts - 1 }

// Has reports whether a port lies in the slice.
func (s PortSlice) Has(port uint16) bool { return s.First <= port && port <= s.Last() }

// Compare orders slices by address, then by port.
func (s PortSlice) Compare(o PortSlice) int {
	return cmp.Or(s.Address.Compare(o.Address), cmp.Compare(s.First, o.First))
}

// Pod is a pod of a node, as the selectors of Services see it. It is not of the host's network.
type Pod struct {
	Key    Key
	UID    string
	Node   string
	Labels map[string]string
	// Addresses are at most one of each family.
	Addresses []netip.Addr
}

// Egress is what a node does about the connections that pods open to addresses outside of the cluster.
type Egress struct {
	// Sources are the addresses of this node's pods that send from an address of a Service, or may not send; ordered by
	// Pod.
	Sources []EgressSource
	// Ways are default routes by links that the node's own default route does not lead over, or not alone. Packets of
	// sources with such a Link take them.
	Ways []EgressWay
	// Passes are the slices of other nodes: this node passes answers to them on. They are ordered by Address and First.
	Passes []EgressPass
	// Inside are the prefixes of destinations that are not outside of the cluster: pods translate nothing to them.
	Inside []netip.Prefix
}

// EgressSource is an address of a pod of this node.
type EgressSource struct {
	Pod netip.Addr
	// UID is the pod's. Another pod may get the address.
	UID string
	// Service decides about the pod.
	Service Key
	// Address and the ports from First on replace the source of the pod's packets. Address is of the pod's family; it
	// is the zero Addr if the Service has none of that family, and then Closed is set. First is 0 while the node has no
	// slice: then nothing is replaced.
	Address netip.Addr
	First   uint16
	// Link is the name of the link that the packets leave by; "" if there is none.
	Link string
	// Closed says why new connections are rejected; "" if they are not. Older connections go on.
	Closed string
	// Confined says why new connections are rejected to destinations to which only the node's default route leads; ""
	// if they are not. It leads over another link, and Link has no way. If Closed is set, Confined is not.
	Confined string
}

// EgressWay is a usable default route by a link of this node.
type EgressWay struct {
	Link string
	Way
}

// Equal reports whether two ways are the same.
func (w EgressWay) Equal(o EgressWay) bool {
	return w.Link == o.Link && w.Family == o.Family && w.MTU == o.MTU && slices.Equal(w.Gateways, o.Gateways)
}

// EgressClosing tells that a node rejects new outgoing connections of pods of a Service, all of them or some.
type EgressClosing struct {
	Service Key
	// Addresses counts the addresses of these pods on the node.
	Addresses int
	// Why is a sentence about the first of the addresses.
	Why string
}

// EgressPass is a slice of another node.
type EgressPass struct {
	Address netip.Addr
	First   uint16
	// Via is an address of that node, which is reached by Link without a router.
	Via  netip.Addr
	Link string
}

// EgressMatch tells which pods send from the addresses of which Service.
type EgressMatch struct {
	// Pods has the pods of each Service, in the order in which they were given.
	Pods map[Key][]*Pod
	// Conflicts are ordered by Younger, then by Older.
	Conflicts []EgressConflict
}

// EgressConflict tells that two Services select the same pods. These send from the addresses of the older one.
type EgressConflict struct {
	Older, Younger Key
}

// MatchEgress finds the Service of each pod. Of the Services of the pod's namespace that have Egress and an address and
// select the pod, it is the oldest one.
func MatchEgress(services []*Service, pods []Pod) EgressMatch {
	byNamespace := map[string][]*Service{}
	for _, s := range services {
		if s.Sends() {
			byNamespace[s.Key.Namespace] = append(byNamespace[s.Key.Namespace], s)
		}
	}
	matchers := map[string]*egressMatcher{}
	for namespace, list := range byNamespace {
		matchers[namespace] = newEgressMatcher(list)
	}

	out := EgressMatch{Pods: map[Key][]*Pod{}}
	for i := range pods {
		m := matchers[pods[i].Key.Namespace]
		if m == nil {
			continue
		}
		oldest := m.match(&pods[i])
		if oldest != nil {
			out.Pods[oldest.Key] = append(out.Pods[oldest.Key], &pods[i])
		}
	}

	for _, m := range matchers {
		out.Conflicts = append(out.Conflicts, m.found()...)
	}
	slices.SortFunc(out.Conflicts, func(a, b EgressConflict) int {
		return cmp.Or(a.Younger.Compare(b.Younger), a.Older.Compare(b.Older))
	})
	return out
}

// egressMatcher finds the Services of the pods of a namespace.
type egressMatcher struct {
	// services are ordered by age, the oldest first.
	services  []*Service
	selectors []Selector
	// conflicts reports for each pair of an older and a younger Service, at its place, whether they select a pod both.
	conflicts []bool
}

func newEgressMatcher(services []*Service) *egressMatcher {
	slices.SortFunc(services, func(a, b *Service) int {
		return cmp.Or(a.Created.Compare(b.Created), a.Key.Compare(b.Key))
	})
	m := &egressMatcher{services: services, conflicts: make([]bool, len(services)*len(services))}
	for _, s := range services {
		m.selectors = append(m.selectors, s.podSelector())
	}
	return m
}

// match returns the oldest Service that selects the pod, or nil, and notes the conflict with each younger one.
func (m *egressMatcher) match(p *Pod) *Service {
	oldest := -1
	for i, selector := range m.selectors {
		switch {
		case !selector.Matches(p.Labels):
		case oldest < 0:
			oldest = i
		default:
			m.conflicts[oldest*len(m.services)+i] = true
		}
	}
	if oldest < 0 {
		return nil
	}
	return m.services[oldest]
}

// found returns the conflicts with their Services.
func (m *egressMatcher) found() (out []EgressConflict) {
	for i, isConflict := range m.conflicts {
		if isConflict {
			older, younger := m.services[i/len(m.services)], m.services[i%len(m.services)]
			out = append(out, EgressConflict{Older: older.Key, Younger: younger.Key})
		}
	}
	return out
}

// Sends reports whether pods send from the addresses of the Service.
func (s *Service) Sends() bool { return s.Egress && len(s.Addresses) > 0 }

// podSelector returns the selector of the Service. Without labels it matches no pod.
func (s *Service) podSelector() (out Selector) {
	for term := range strings.SplitSeq(strings.TrimSuffix(s.Backend, ","), ",") {
		key, value, _ := strings.Cut(term, "=")
		out = append(out, Requirement{Key: key, Operator: In, Values: []string{value}})
	}
	return out
}
