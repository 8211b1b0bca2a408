package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Hindrances returns the nodes that may not announce some address of a Service of this State, by reason: by layer 2,
// and by BGP.
func Hindrances(state lb.State, s *lb.Service) (l2, bgp map[lb.Reason][]string) {
	c := newCommon("", commonPart(state))
	of := func(all scopes) map[lb.Reason][]string {
		out := map[lb.Reason][]string{}
		for _, a := range s.Addresses {
			ads := all.selecting(s, c.pools.pool(s, a))
			for reason, nodes := range c.hindered(s, lb.FamilyOf(a), all, ads) {
				out[reason] = lb.Names(out[reason]).With(nodes...)
			}
		}
		return out
	}
	return of(c.l2), of(c.ads)
}

// hindered returns the nodes that may not announce a Service that these advertisements select, by reason.
func (c *common) hindered(
	s *lb.Service,
	f lb.Family,
	of scopes,
	ads []int,
) map[lb.Reason][]string {
	names := maps.Clone(c.barred)
	for i, n := range c.nodes {
		if n.barred != "" {
			continue
		}
		r := c.reason(i, s, f, of, ads)
		if r == "" && c.isUnfit(n.Name, lb.Unfiltered) {
			r = lb.FilterNotInForce
		}
		if r != "" {
			names[r] = append(names[r], n.Name)
		}
	}

	return names
}

// explain returns a reason that depends on nodes or endpoints, and its sentence. Of a proxied Service the reason is
// usually another.
func (c *common) explain(
	s *lb.Service,
	f lb.Family,
	why lb.Reason,
	of scopes,
	ads []int,
) (lb.Reason, string) {
	names := c.hindered(s, f, of, ads)
	if s.Proxied {
		text := noProxy(s, f, why, names[lb.NoProxy])
		if text != "" {
			return lb.NoProxy, text
		}
	}

	switch why {
	case lb.ProxyRefused:
		return why, "the Service asks for proxies and may not have them: its condition holdfast.dev/Proxied says why"
	case lb.NoServingEndpoint:
		return why, fmt.Sprintf("no endpoint serves a port of the Service over %s", f)
	case lb.IgnoredByKubeProxy:
		return why, "kube-proxy does not serve the Service, since it or its EndpointSlices have the label " +
			"service.kubernetes.io/service-proxy-name or service.kubernetes.io/headless"
	case lb.FilterNotEnforceable:
		return why, "nothing enforces the source ranges of the annotations or of the pool, " +
			"since Holdfast does not filter (dataPath: Other)"
	case lb.CutOff:
		return why, fmt.Sprintf(
			"node %s is cut off from half of the speakers or more and reaches no node with a serving endpoint (%s)",
			c.node,
			lb.SomeOf(s.ServingNodes(f)),
		)
	case lb.FilterNotInForce:
		return why, "no node that may announce can keep the filter of the source ranges in force (" +
			lb.SomeOf(names[why]) + ")"
	}

	delete(names, lb.FilterNotInForce)
	return why, c.noNode(s, names, of, ads)
}

// noNode returns the sentence on a Service that none of these nodes may announce, by reason.
func (c *common) noNode(
	s *lb.Service,
	names map[lb.Reason][]string,
	of scopes,
	ads []int,
) string {
	var parts []string
	for _, r := range slices.Sorted(maps.Keys(names)) {
		part := fmt.Sprintf("%s: %s", r, lb.SomeOf(names[r]))
		switch r {
		case lb.NodeNotSelected:
			part += cmp.Or(c.selectedBy(s, names[r], of, ads), ", without a Node object")
		case lb.NodeExcluded:
			part += " by the label node.kubernetes.io/exclude-from-external-load-balancers"
		}
		parts = append(parts, part)
	}

	if len(parts) == 0 {
		return "no node may announce: there is no node"
	}

	return "no node may announce (" + strings.Join(parts, "; ") + ")"
}

// selectedBy says what keeps the named nodes from being selected for a Service that these advertisements select.
func (c *common) selectedBy(
	s *lb.Service,
	nodes []string,
	of scopes,
	ads []int,
) string {
	isLeftOut, isRefused := false, false
	for _, i := range c.indexes(nodes) {
		isLeftOut = isLeftOut || !of.onNode(ads, i)
		isRefused = isRefused || !selects(s.NodeSelectors, c.nodes[i].Labels)
	}

	var out []string
	if isLeftOut {
		for _, ad := range ads {
			out = append(out, "nodeSelectors of "+of[ad].name)
		}
	}

	if isRefused {
		out = append(out, "the Service's holdfast.dev/node-selector, or OpenStack's")
	}

	if len(out) == 0 {
		return ""
	}

	return " by " + lb.SomeOf(out)
}
