package main

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nodelifecycle"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// unfilteredLook is the time between two reads of which nodes filter.
	unfilteredLook = 10 * time.Second
	// unfilteredGrace is how long a node is without a filter before it counts: a new node gets its speaker within that,
	// and a new leader does not know for how long it has been so.
	unfilteredGrace = time.Minute
	// unfilteredPace is the time between two changes for each Service with source ranges, since a change writes all of
	// them: 10,000 are written every 10 minutes at most.
	unfilteredPace = 60 * time.Millisecond
)

// unfiltered are the nodes on which nothing enforces source ranges though kube-proxy serves the addresses there.
type unfiltered struct {
	reports reports
	// since is from when on each node is without a filter.
	since map[string]time.Time
	// began is the time of the first read of this term, changed that of the last change.
	began, changed time.Time
	// ranged is how many Services have source ranges.
	ranged atomic.Int64
	// said is what Services with ranges say, empty if all nodes filter; nil before that is known.
	said atomic.Pointer[string]
}

// forget is called when this replica stops leading.
func (u *unfiltered) forget() {
	u.reports, u.since, u.began = nil, nil, time.Time{}
	u.said.Store(nil)
}

// refresh reads nodes and SpeakerStates, and reports whether Services with ranges say something else than before.
func (u *unfiltered) refresh(now time.Time, nodes []*corev1.Node, states []*v1beta1.SpeakerState) bool {
	u.read(now, nodes, states)
	if u.began.IsZero() {
		u.began = now
	}
	if now.Sub(u.began) < unfilteredGrace {
		return false
	}
	var names []string
	for name, since := range u.since {
		if now.Sub(since) >= unfilteredGrace {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	before, text := u.said.Load(), unfilteredText(names)
	if before != nil && (*before == text || now.Sub(u.changed) < time.Duration(u.ranged.Load())*unfilteredPace) {
		return false
	}
	u.changed = now
	u.said.Store(&text)
	return true
}

// read updates since.
func (u *unfiltered) read(now time.Time, nodes []*corev1.Node, states []*v1beta1.SpeakerState) {
	filters := map[string]bool{}
	u.reports = u.reports.read(now, states)
	for _, s := range states {
		filters[s.Name] = !u.reports.stale(now, s.Name) && !slices.ContainsFunc(s.Status.Problems, opens)
	}
	since, notReady := map[string]time.Time{}, nodelifecycle.NotReady(nodes)
	for _, n := range nodes {
		if filters[n.Name] || notReady[n.Name] || virtual(n) {
			continue
		}
		if since[n.Name] = now; !u.since[n.Name].IsZero() {
			since[n.Name] = u.since[n.Name]
		}
	}
	u.since = since
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
	return fmt.Sprintf("not on node %s: no speaker keeps a packet filter in force there, and kube-proxy serves the addresses by its own rules, which know "+
		"spec.loadBalancerSourceRanges only; let speaker.tolerations and speaker.nodeSelector admit the node, or see its SpeakerState", lb.SomeOf(nodes))
}

// problems returns those of the Services with source ranges.
func (u *unfiltered) problems(frontends []lb.Frontend, options config.Options) []lb.Problem {
	seen := map[lb.Key]bool{}
	var out []lb.Problem
	said := u.said.Load()
	for i := range frontends {
		f := &frontends[i]
		if !f.HasRanges() || seen[f.Service] {
			continue
		}
		seen[f.Service] = true
		if said != nil && *said != "" && !options.NoFilter {
			object := lb.Object{Kind: config.KindService, Namespace: f.Service.Namespace, Name: f.Service.Name}
			out = append(out, lb.Problem{Object: object, Reason: lb.NodesUnfiltered, Message: *said})
		}
	}
	u.ranged.Store(int64(len(seen)))
	return out
}

// access returns the condition on access to the Service. While it is not known which nodes filter, a condition that names
// such nodes stays.
func (w serviceWrite) access() (metav1.Condition, bool) {
	c := meta.FindStatusCondition(w.service.Status.Conditions, v1beta1.ConditionFiltered)
	if w.nodesUnknown && c != nil && c.Reason == string(lb.NodesUnfiltered) {
		return *c, true
	}
	return w.filtered()
}
