package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
)

const (
	// unfilteredGrace is the time for which a node must be without a filter before it counts. A new node gets its
	// speaker within that time, and a new leader does not know since when a node is without a filter.
	unfilteredGrace = time.Minute
	// unfilteredInterval is the time between two changes of the text, for each Service with source ranges. A change
	// writes all of them: 10,000 Services are written every 10 minutes at most.
	unfilteredInterval = 60 * time.Millisecond
)

// unfilteredNodes are the nodes on which nothing enforces source ranges although kube-proxy serves addresses there. All
// Services with source ranges report them.
type unfilteredNodes struct {
	// since is the time from which each node is without a filter.
	since map[string]time.Time
	// began is the time of the first observation.
	began time.Time
	// changed is the time of the last change of text.
	changed time.Time
	// ranged is the number of Services with source ranges.
	ranged int
	// isKnown reports whether text is valid. Before that it is not known which nodes filter.
	isKnown bool
	// text names the nodes; empty if all nodes filter.
	text string
}

// observe takes the names of the nodes that are without a filter now.
func (u *unfilteredNodes) observe(at time.Time, unfiltered []string) {
	if u.began.IsZero() {
		u.began = at
	}

	before := u.since
	u.since = map[string]time.Time{}
	var names []string
	for _, name := range unfiltered {
		since, ok := before[name]
		if !ok {
			since = at
		}

		u.since[name] = since
		if at.Sub(since) >= unfilteredGrace {
			names = append(names, name)
		}
	}

	slices.Sort(names)

	text := unfilteredText(names)
	isTooEarly := at.Sub(u.began) < unfilteredGrace
	isTooSoon := u.isKnown && at.Sub(u.changed) < time.Duration(u.ranged)*unfilteredInterval
	isUnchanged := u.isKnown && u.text == text
	if isTooEarly || isTooSoon || isUnchanged {
		return
	}

	u.text = text
	u.isKnown = true
	u.changed = at
}

// problems returns the Problems of the Services with source ranges. It also counts these Services, since their number
// determines how often the text may change.
func (u *unfilteredNodes) problems(frontends []lb.Frontend) []lb.Problem {
	seen := map[lb.Key]bool{}
	var out []lb.Problem
	for i := range frontends {
		f := &frontends[i]
		if !f.HasRanges() || seen[f.Service] {
			continue
		}

		seen[f.Service] = true
		if u.text == "" {
			continue
		}
		out = append(out, lb.Problem{
			Object:  config.ServiceObject(f.Service),
			Reason:  lb.NodesUnfiltered,
			Message: u.text,
		})
	}

	u.ranged = len(seen)
	return out
}

// unfilteredNodes returns the names of the nodes that are without a filter.
func (r reportTimes) unfilteredNodes(
	at time.Time,
	nodes []*corev1.Node,
	states []*v1beta1.SpeakerState,
	notReady map[string]bool,
) (names []string) {
	filters := map[string]bool{}
	for _, s := range states {
		hasFault := slices.ContainsFunc(s.Status.Problems, reportsUnfiltered)
		filters[s.Name] = !hasFault && !r.isStale(at, s.Name)
	}

	for _, n := range nodes {
		isConcerned := !notReady[n.Name] && !isVirtual(n)
		if isConcerned && !filters[n.Name] {
			names = append(names, n.Name)
		}
	}

	return names
}

// reportsUnfiltered reports whether a node with this problem does not enforce source ranges.
func reportsUnfiltered(p v1beta1.NodeProblem) bool {
	return p.Reason == string(lb.FilterNotInForce) || p.Reason == string(lb.FilterNotEnforceable)
}

// isVirtual reports whether a node has neither a kernel nor a kube-proxy. Virtual kubelets label their nodes so.
func isVirtual(n *corev1.Node) bool {
	return n.Labels["type"] == "virtual-kubelet"
}

// unfilteredText returns the message of a Service with source ranges about these nodes.
func unfilteredText(nodes []string) string {
	if len(nodes) == 0 {
		return ""
	}
	return fmt.Sprintf("not on node %s: no speaker keeps a packet filter in force there, or eBPF programs may bypass it; "+
		"whatever delivers packets there applies at most spec.loadBalancerSourceRanges", lb.SomeOf(nodes))
}

// restrictedServices returns the State with only the Services to which access may be restricted. They have the assigned
// addresses, since the addresses in their status may be wrong.
func restrictedServices(s lb.State, assigned []*ipam.Assignment) lb.State {
	hasPools := slices.ContainsFunc(s.Pools, func(p lb.Pool) bool {
		return p.Restricted
	})
	all := s.Services
	s.Services = nil

	for i, svc := range all {
		if !hasPools && !isRestricted(&svc.Access) {
			continue
		}

		a := assigned[i]
		isOurs := a.Reason != lb.ForeignAddress
		if isOurs && !slices.Equal(a.Addresses, svc.Addresses) {
			withAssigned := *svc
			withAssigned.Addresses = a.Addresses
			svc = &withAssigned
		}

		s.Services = append(s.Services, svc)
	}

	return s
}

// isRestricted reports whether the filter has anything to enforce.
func isRestricted(a *lb.Access) bool {
	return a.HasRanges() ||
		a.ConnectionLimit > 0 ||
		a.RateLimit > 0 ||
		a.LogDrops
}
