package report

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

var (
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

// Metrics shows what stands on a node. It reads that when it is collected.
type Metrics struct {
	// Standing returns the result of the last run of the plan loop; nil if nothing stands.
	Standing func() *Standing
	Layer2   Layer2
	// Sessions returns the BGP sessions of this node at this moment.
	Sessions func() []lb.Session
	// Tables reports which tables of the kernel are in force, by kind.
	Tables func() map[string]bool
	// ProxyRepairs returns how often the table of the proxies was repaired.
	ProxyRepairs func() uint64
	// Hangs reports whether a run of the plan loop hangs.
	Hangs func() bool
	// APIAge returns how long ago this node heard the API server, if it takes part in the membership.
	APIAge func() (age time.Duration, isKnown bool)
}

// Describe implements prometheus.Collector. It names no metric: some begin with the membership.
func (m *Metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.collectProblems(ch)
	ch <- prometheus.MustNewConstMetric(hangsDesc, prometheus.GaugeValue, number(m.Hangs()))
	ch <- prometheus.MustNewConstMetric(repairsDesc, prometheus.CounterValue, float64(m.ProxyRepairs()), "proxy")
	for kind, isInForce := range m.Tables() {
		ch <- prometheus.MustNewConstMetric(inForceDesc, prometheus.GaugeValue, number(isInForce), kind)
	}

	if last := m.Standing(); last != nil {
		for row := range announcedHere(last.Plan, m.Layer2.State().Addresses, m.Sessions()) {
			ch <- prometheus.MustNewConstMetric(announcedDesc, prometheus.GaugeValue, 1, row[:]...)
		}
	}

	age, isKnown := m.APIAge()
	if isKnown {
		ch <- prometheus.MustNewConstMetric(apiAgeDesc, prometheus.GaugeValue, age.Seconds())
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
func (m *Metrics) collectProblems(ch chan<- prometheus.Metric) {
	count := map[lb.Reason]int{}
	if last := m.Standing(); last != nil {
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
