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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// unfilteredGrace is how long a node is without a filter before it counts: a new node gets its speaker within that,
	// and a new leader does not know for how long it has been so.
	unfilteredGrace = time.Minute
	// unfilteredPace is the time between two changes for each Service with source ranges, since a change writes all of
	// them: 10,000 are written every 10 minutes at most.
	unfilteredPace = 60 * time.Millisecond
)

// unfiltered is what Services with source ranges say of nodes on which nothing enforces these though kube-proxy serves
// the addresses there.
type unfiltered struct {
	// since is from when on each node is without a filter.
	since map[string]time.Time
	// began is the time of the first look, changed that of the last change.
	began, changed time.Time
	// ranged is how many Services have source ranges.
	ranged int
	// known: text is valid. Before that it is not known which nodes filter.
	known bool
	// text is empty if all nodes filter.
	text string
}

// look takes the nodes without a filter.
func (u *unfiltered) look(now time.Time, open []string) {
	if u.began.IsZero() {
		u.began = now
	}
	before := u.since
	u.since = map[string]time.Time{}
	var names []string
	for _, name := range open {
		since, known := before[name]
		if !known {
			since = now
		}
		u.since[name] = since
		if now.Sub(since) >= unfilteredGrace {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	text := unfilteredText(names)
	switch {
	case now.Sub(u.began) < unfilteredGrace:
	case u.known && (u.text == text || now.Sub(u.changed) < time.Duration(u.ranged)*unfilteredPace):
	default:
		u.text, u.known, u.changed = text, true, now
	}
}

// open returns the nodes without a filter.
func (r reports) open(
	now time.Time,
	nodes []*corev1.Node,
	states []*v1beta1.SpeakerState,
	notReady map[string]bool,
) (names []string) {
	filters := map[string]bool{}
	for _, s := range states {
		filters[s.Name] = !r.stale(now, s.Name) && !slices.ContainsFunc(s.Status.Problems, opens)
	}
	for _, n := range nodes {
		if !filters[n.Name] && !notReady[n.Name] && !virtual(n) {
			names = append(names, n.Name)
		}
	}
	return names
}

// opens reports whether a node with this problem does not enforce source ranges.
func opens(p v1beta1.NodeProblem) bool {
	return p.Reason == string(lb.FilterNotInForce) || p.Reason == string(lb.FilterNotEnforceable)
}

// virtual reports whether a node has neither a kernel nor a kube-proxy; virtual kubelets label their nodes so.
func virtual(n *corev1.Node) bool { return n.Labels["type"] == "virtual-kubelet" }

// unfilteredText is what a Service with ranges says of these nodes.
func unfilteredText(nodes []string) string {
	if len(nodes) == 0 {
		return ""
	}
	return fmt.Sprintf(
		"not on node %s: no speaker keeps a packet filter in force there, or eBPF may carry packets past it, and what "+
			"delivers them instead knows spec.loadBalancerSourceRanges at most",
		lb.SomeOf(nodes),
	)
}

// restricted returns the State with the Services only to which access may be restricted, and these with the addresses
// that they are to have: what they show may be a mistake.
func restricted(s lb.State, assigned []*ipam.Assignment) lb.State {
	pools, all := slices.ContainsFunc(s.Pools, func(p lb.Pool) bool { return p.Restricted }), s.Services
	s.Services = nil
	for i, svc := range all {
		if !pools && !restricts(&svc.Access) {
			continue
		}
		if a := assigned[i]; a.Reason != lb.ForeignAddress && !slices.Equal(a.Addresses, svc.Addresses) {
			other := *svc
			other.Addresses, svc = a.Addresses, &other
		}
		s.Services = append(s.Services, svc)
	}
	return s
}

func restricts(a *lb.Access) bool {
	return a.HasRanges() || a.ConnectionLimit > 0 || a.RateLimit > 0 || a.LogDrops
}

// problems returns those of the Services with source ranges.
func (u *unfiltered) problems(frontends []lb.Frontend) []lb.Problem {
	seen := map[lb.Key]bool{}
	var out []lb.Problem
	for i := range frontends {
		f := &frontends[i]
		if !f.HasRanges() || seen[f.Service] {
			continue
		}
		seen[f.Service] = true
		if u.text != "" {
			object := lb.Object{Kind: config.KindService, Namespace: f.Service.Namespace, Name: f.Service.Name}
			out = append(out, lb.Problem{Object: object, Reason: lb.NodesUnfiltered, Message: u.text})
		}
	}
	u.ranged = len(seen)
	return out
}

// access returns the condition on access to the Service. While it is not known which nodes filter, a condition that
// names such nodes stays.
func (w serviceWrite) access() (metav1.Condition, bool) {
	c := meta.FindStatusCondition(w.service.Status.Conditions, v1beta1.ConditionFiltered)
	if w.nodesUnknown && c != nil && c.Reason == string(lb.NodesUnfiltered) {
		return *c, true
	}
	return w.filtered()
}
