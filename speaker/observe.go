package main

import (
	"errors"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// maxLogged is how many Services are named when a run changed more: a thousand lines cost the time that a failover
// needs for announcements.
const maxLogged = 20

// logChanges logs the Services whose announcement by this node changed, and each new problem of this node.
func (w *syncer) logChanges(last, now *planned) {
	changes := 0
	last.plan().Verdicts.Changes(now.Plan.Verdicts, func(_ lb.Key, old, v *plan.Verdict, had, has bool) {
		if !has {
			return
		}
		if !had {
			old = &plan.Verdict{}
		}
		layer2, bgp := old.L2.Here != v.L2.Here && v.L2.Selected, old.BGP.Here != v.BGP.Here && v.BGP.Selected
		if layer2 || bgp {
			changes++
		}
		if layer2 && changes <= maxLogged {
			w.log.Info(
				"layer 2",
				"service",
				v.Service,
				"reason",
				v.L2.Here,
				"nodes",
				v.L2.Nodes,
				"message",
				v.L2.Message,
			)
		}
		if bgp && changes <= maxLogged {
			w.log.Info("BGP", "service", v.Service, "reason", v.BGP.Here, "message", v.BGP.Message)
		}
	})
	if changes > maxLogged {
		w.log.Info("more Services changed", "services", changes-maxLogged)
	}
	for _, p := range now.Problems {
		if last == nil || !slices.Contains(last.Problems, p) {
			w.log.Warn("node", "reason", p.Reason, "message", p.Message)
		}
	}
}

// debug returns what /debug/state shows.
func (w *syncer) debug() any {
	return struct {
		Node      string
		Planned   *planned
		Members   detect.NodeSets
		Links     []lb.Interface
		Layer2    any
		Sessions  []lb.Session
		Filter    any
		Relay     any
		Unserved  []lb.Key
		HeadStart bool
		Proxy     any
		KubeProxy string
		// Looks at the memory of plans.
		Looks int64
	}{w.node, w.last.Load(), w.membership.view(), w.links.Links(), w.layer2.State(), w.bgp.Sessions(),
		switchable(
			w.filter.on,
			w.filter.table.State(),
		), switchable(w.relays.on, w.relays.State()), w.endpoints.Waiting(),
		w.headstart.InForce(), w.divert.State(), w.boot.Waiting(), w.witness.looks.Load()}
}

var (
	membersDesc = prometheus.NewDesc("holdfast_members",
		"Speakers by state as this one knows it, itself included: alive, holdDown, speakerDown, dead, left or unknown.",
		[]string{"state"}, nil)
	apiAgeDesc = prometheus.NewDesc("holdfast_api_age_seconds",
		"Time since this speaker last heard the API server, of which it asks nothing: 0 to 3 as a rule.", nil, nil)
	problemsDesc = prometheus.NewDesc(
		"holdfast_problems",
		"Problems that a user must fix: of the configuration (controller) and of the node (speaker).",
		[]string{"kind", "reason"},
		nil,
	)
	inForceDesc = prometheus.NewDesc(
		"holdfast_table_in_force",
		"1 while the kernel does what the last plan asks of the table of this kind: filter, headstart or proxy; 0 also if it is switched off.",
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
		"1 while a run of the plan loop hangs: others take its addresses over, and the kubelet restarts it.",
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
	lb.LinkSilent,
	lb.HeartbeatsBlocked,
	lb.EchoBlocked,
	lb.CutOff,
}

// Describe implements prometheus.Collector. It names no metric: those of the membership begin when that does.
func (w *syncer) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector: it reads the membership at scrape time, and the result of the last run.
func (w *syncer) Collect(ch chan<- prometheus.Metric) {
	w.collectProblems(ch)
	ch <- prometheus.MustNewConstMetric(hangsDesc, prometheus.GaugeValue, number(w.hang.since.Load() != nil))
	ch <- prometheus.MustNewConstMetric(repairsDesc, prometheus.CounterValue, float64(w.divert.Repairs()), "proxy")
	ch <- prometheus.MustNewConstMetric(repairsDesc, prometheus.CounterValue, float64(w.witness.repairs.Load()), "plan")
	for kind, ok := range map[string]bool{"filter": w.filter.inForce(), "headstart": w.headstart.InForce(), "proxy": w.divert.InForce()} {
		ch <- prometheus.MustNewConstMetric(inForceDesc, prometheus.GaugeValue, number(ok), kind)
	}
	for row := range announcedHere(w.last.Load().plan(), w.layer2.State().Addresses, w.bgp.Sessions()) {
		ch <- prometheus.MustNewConstMetric(announcedDesc, prometheus.GaugeValue, 1, row[:]...)
	}
	m := w.membership.members.Load()
	if m == nil {
		return
	}
	count := map[detect.Status]int{}
	for _, member := range m.View().Members {
		count[member.Status]++
	}
	for s := detect.Unknown; s <= detect.Left; s++ {
		ch <- prometheus.MustNewConstMetric(membersDesc, prometheus.GaugeValue, float64(count[s]), s.String())
	}
	ch <- prometheus.MustNewConstMetric(apiAgeDesc, prometheus.GaugeValue, w.owners.age().Seconds())
	m.Collect(ch)
}

func number(b bool) float64 { return map[bool]float64{true: 1}[b] }

// collectProblems counts the problems that the last run found on this node.
func (w *syncer) collectProblems(ch chan<- prometheus.Metric) {
	count := map[lb.Reason]int{}
	if last := w.last.Load(); last != nil {
		for _, p := range last.Problems {
			count[p.Reason]++
		}
	}
	for _, reason := range nodeReasons {
		ch <- prometheus.MustNewConstMetric(problemsDesc, prometheus.GaugeValue, float64(count[reason]), config.KindNode, string(reason))
	}
}

// announcedHere returns the rows of announcedDesc.
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
		if s, shown := lb.StateOf(states, f.Address); shown && s.Answered && v.L2.Here == lb.Announced {
			out[[4]string{f.Service.Namespace, f.Service.Name, string(family), "layer2"}] = true
		}
		if p.Advertised.Has(f.Address) &&
			v.BGP.Here == lb.Announced &&
			slices.ContainsFunc(sessions, func(s lb.Session) bool {
				return s.IsEstablished() && slices.Contains(s.Families, family) && slices.Contains(v.BGP.Peers, s.Peer)
			}) {
			out[[4]string{f.Service.Namespace, f.Service.Name, string(family), "bgp"}] = true
		}
	}
	return out
}

// heartbeatProcess collects CPU and memory of the heartbeat process.
func (w *syncer) heartbeatProcess() prometheus.Collector {
	return collectors.NewProcessCollector(collectors.ProcessCollectorOpts{
		Namespace: "holdfast_heartbeat",
		PidFn: func() (int, error) {
			if m := w.membership.members.Load(); m != nil {
				return m.Process()
			}
			return 0, errors.New("the membership has not started")
		},
	})
}

// registry returns a registry with the metrics of all parts.
func (w *syncer) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		daemon.BuildInfo(),
		daemon.Stderr.Dropped(),
		w.layer2,
		w.bgp,
		w.peering.BFD,
		w.peering.Messages(),
		w.filter.table,
		w.relays,
		w.conntrack.Forgotten,
		w,
		w.heartbeatProcess(),
	)
	return r
}
