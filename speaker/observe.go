package main

import (
	"slices"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/prometheus/client_golang/prometheus"
)

// maxLogged is how many Services a run logs by name. A thousand lines would delay the announcements of a failover.
const maxLogged = 20

// logChanges logs the Services whose announcement by this node changed, and each new problem of this node.
func (w *Loop) logChanges(last, next *planned) {
	changes := 0
	last.plan().Verdicts.Changes(next.Plan.Verdicts, func(_ lb.Key, old, v *plan.Verdict, existed, exists bool) {
		if !exists {
			return
		}
		if !existed {
			old = &plan.Verdict{}
		}

		layer2 := old.L2.Here != v.L2.Here && v.L2.Selected
		bgp := old.BGP.Here != v.BGP.Here && v.BGP.Selected
		if layer2 || bgp {
			changes++
		}
		if layer2 && changes <= maxLogged {
			w.log.Info("layer 2",
				"service", v.Service, "reason", v.L2.Here, "nodes", v.L2.Nodes, "message", v.L2.Message)
		}
		if bgp && changes <= maxLogged {
			w.log.Info("BGP", "service", v.Service, "reason", v.BGP.Here, "message", v.BGP.Message)
		}
	})
	if changes > maxLogged {
		w.log.Info("more Services changed", "services", changes-maxLogged)
	}

	for _, p := range next.Problems {
		if last == nil || !slices.Contains(last.Problems, p) {
			w.log.Warn("node", "reason", p.Reason, "message", p.Message)
		}
	}
}

// debugState is the answer of /debug/state.
type debugState struct {
	Node      string
	Planned   *planned
	Members   detect.NodeSets
	Links     []lb.Interface
	Layer2    any
	Sessions  []lb.Session
	Filter    any
	Relay     any
	Egress    any
	Unserved  []lb.Key
	HeadStart bool
	Proxy     any
	KubeProxy string
}

// Debug returns the answer of /debug/state.
func (w *Loop) Debug() any {
	return debugState{
		Node:      w.node,
		Planned:   w.last.Load(),
		Members:   w.sources.Membership.view(),
		Links:     w.sources.Links.Links(),
		Layer2:    w.sinks.Layer2.State(),
		Sessions:  w.sinks.BGP.Sessions(),
		Filter:    switchable(w.sinks.Filter.on, w.sinks.Filter.Table.State()),
		Relay:     switchable(w.sinks.Relays.on, w.sinks.Relays.State()),
		Egress:    w.sinks.Outgoing.State(),
		Unserved:  w.sources.Endpoints.Waiting(),
		HeadStart: w.sinks.HeadStart.InForce(),
		Proxy:     w.sinks.Divert.State(),
		KubeProxy: w.sources.Boot.Waiting(),
	}
}

// switchable returns the state of a part for /debug/state, or "off" if the part is switched off.
func switchable(on bool, state any) any {
	if on {
		return state
	}
	return "off"
}

var (
	membersDesc = prometheus.NewDesc("holdfast_members",
		"Speakers by state as this one knows it, itself included: alive, holdDown, speakerDown, dead, left or unknown.",
		[]string{"state"}, nil)
	apiAgeDesc = prometheus.NewDesc("holdfast_api_age_seconds",
		"Time since this speaker last heard the API server, without asking it for anything: normally 0 to 3.", nil, nil)
	problemsDesc = prometheus.NewDesc(
		"holdfast_problems",
		"Problems that a user must fix: in the configuration (controller) and on the node (speaker).",
		[]string{"kind", "reason"},
		nil,
	)
	inForceDesc = prometheus.NewDesc(
		"holdfast_table_in_force",
		"1 while the kernel table of this kind (filter, headstart or proxy) is as the last plan asks; "+
			"0 too if it is switched off.",
		[]string{"kind"},
		nil,
	)
	repairsDesc   = prometheus.NewDesc("holdfast_repairs_total", "Repairs of drift, by kind.", []string{"kind"}, nil)
	announcedDesc = prometheus.NewDesc(
		"holdfast_service_announced",
		"1 for each Service that this node announces by layer2, or to a router by bgp; the first 2,000 series by address.",
		[]string{"namespace", "service", "family", "protocol"},
		nil,
	)
	hangsDesc = prometheus.NewDesc(
		"holdfast_plan_hangs",
		"1 while a run of the plan loop hangs: other nodes take over its addresses, and the kubelet restarts it.",
		nil,
		nil,
	)
)

// nodeReasons are the reasons of all problems that a node can have.
var nodeReasons = []lb.Reason{
	lb.FilterNotEnforceable,
	lb.FilterNotInForce,
	lb.RangesRefused,
	lb.StrictARPMissing,
	lb.SocketRefused,
	lb.KernelFeatureMissing,
	lb.KubeProxyNotReady,
	lb.NetworkUnavailable,
	lb.EgressUnavailable,
	lb.LinkSilent,
	lb.LinkDivided,
	lb.HeartbeatsBlocked,
	lb.EchoBlocked,
	lb.CutOff,
}

// Describe implements prometheus.Collector. It names no metric: some begin when the membership starts.
func (w *Loop) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. It reads the membership and the result of the last run.
func (w *Loop) Collect(ch chan<- prometheus.Metric) {
	w.collectProblems(ch)
	ch <- prometheus.MustNewConstMetric(hangsDesc, prometheus.GaugeValue, number(w.stops.hang.since.Load() != nil))
	ch <- prometheus.MustNewConstMetric(repairsDesc, prometheus.CounterValue, float64(w.sinks.Divert.Repairs()), "proxy")
	tables := map[string]bool{
		"filter":    w.sinks.Filter.inForce(),
		"headstart": w.sinks.HeadStart.InForce(),
		"proxy":     w.sinks.Divert.InForce(),
	}
	for kind, ok := range tables {
		ch <- prometheus.MustNewConstMetric(inForceDesc, prometheus.GaugeValue, number(ok), kind)
	}
	for row := range announcedHere(w.last.Load().plan(), w.sinks.Layer2.State().Addresses, w.sinks.BGP.Sessions()) {
		ch <- prometheus.MustNewConstMetric(announcedDesc, prometheus.GaugeValue, 1, row[:]...)
	}
	if w.sources.Membership.Ready() {
		ch <- prometheus.MustNewConstMetric(apiAgeDesc, prometheus.GaugeValue, w.sources.Cluster.APIAge().Seconds())
	}
}

// number returns 1 for true and 0 for false.
func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// collectProblems counts the problems that the last run found on this node.
func (w *Loop) collectProblems(ch chan<- prometheus.Metric) {
	count := map[lb.Reason]int{}
	if last := w.last.Load(); last != nil {
		for _, p := range last.Problems {
			count[p.Reason]++
		}
	}
	for _, reason := range nodeReasons {
		ch <- prometheus.MustNewConstMetric(problemsDesc, prometheus.GaugeValue, float64(count[reason]),
			config.KindNode, string(reason))
	}
}

// announcedHere returns the label values of announcedDesc.
func announcedHere(p plan.Plan, states []lb.AddressState, sessions []lb.Session) map[[4]string]bool {
	out := map[[4]string]bool{}
	for f := range p.Filter.Each() {
		if len(out) == daemon.MaxNamed {
			break
		}
		v, family := p.Verdicts.Of(f.Service), lb.FamilyOf(f.Address)
		if v == nil {
			continue
		}

		s, isShown := lb.StateOf(states, f.Address)
		if isShown && s.Answered && v.L2.Here == lb.Announced {
			out[[4]string{f.Service.Namespace, f.Service.Name, string(family), "layer2"}] = true
		}

		carriesRoute := func(s lb.Session) bool {
			return s.IsEstablished() && slices.Contains(s.Families, family) && slices.Contains(v.BGP.Peers, s.Peer)
		}
		isAdvertised := p.Advertised.Has(f.Address) && v.BGP.Here == lb.Announced
		if isAdvertised && slices.ContainsFunc(sessions, carriesRoute) {
			out[[4]string{f.Service.Namespace, f.Service.Name, string(family), "bgp"}] = true
		}
	}
	return out
}
