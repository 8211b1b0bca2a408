package main

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

var (
	membersDesc = prometheus.NewDesc("holdfast_members",
		"Speakers by state as this one knows it, itself included: alive, holdDown, speakerDown, dead, left or unknown.",
		[]string{"state"}, nil)
	apiAgeDesc = prometheus.NewDesc("holdfast_api_age_seconds",
		"Time since this speaker last heard the API server, of which it asks nothing: 0 to 3 as a rule.", nil, nil)
	problemsDesc = prometheus.NewDesc("holdfast_problems",
		"Problems that a user must fix: of the configuration (controller) and of the node (speaker).", []string{"kind", "reason"}, nil)
	hangsDesc = prometheus.NewDesc("holdfast_plan_hangs", "1 while a run of the plan loop hangs: others take its addresses over, and the kubelet restarts it.",
		nil, nil)
)

// nodeReasons are the reasons of all problems that a node can have.
var nodeReasons = []lb.Reason{lb.FilterNotEnforceable, lb.FilterNotInForce, lb.RangesRefused, lb.StrictARPMissing, lb.SocketRefused, lb.KernelFeatureMissing,
	lb.KubeProxyNotReady, lb.LinkSilent, lb.HeartbeatsBlocked, lb.EchoBlocked, lb.CutOff}

// Describe implements prometheus.Collector.
func (w *syncer) Describe(ch chan<- *prometheus.Desc) {
	ch <- membersDesc
	ch <- apiAgeDesc
	ch <- problemsDesc
	ch <- hangsDesc
	heartbeat.Describe(ch)
}

// Collect implements prometheus.Collector: it reads the membership at scrape time, and the result of the last run.
func (w *syncer) Collect(ch chan<- prometheus.Metric) {
	w.collectProblems(ch)
	ch <- prometheus.MustNewConstMetric(hangsDesc, prometheus.GaugeValue, w.hang.hangs())
	m := w.membership.members.Load()
	if m == nil {
		return
	}
	count := map[heartbeat.Status]int{}
	for _, member := range m.View().Members {
		count[member.Status]++
	}
	for s := heartbeat.Unknown; s <= heartbeat.Left; s++ {
		ch <- prometheus.MustNewConstMetric(membersDesc, prometheus.GaugeValue, float64(count[s]), s.String())
	}
	ch <- prometheus.MustNewConstMetric(apiAgeDesc, prometheus.GaugeValue, w.owners.age().Seconds())
	m.Collect(ch)
}

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

// heartbeatProcess collects CPU and memory of the heartbeat process.
func (w *syncer) heartbeatProcess() prometheus.Collector {
	return collectors.NewProcessCollector(collectors.ProcessCollectorOpts{
		Namespace: "holdfast_heartbeat",
		PidFn: func() (int, error) {
			if m := w.membership.members.Load(); m != nil {
				return m.HeartbeatProcess()
			}
			return 0, errors.New("the membership has not started")
		},
	})
}

// registry returns a registry with the metrics of all parts.
func (w *syncer) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), daemon.BuildInfo(),
		w.layer2, w.bgp, w.paths.bfd, w.paths.finder, w.filter.table, w.relays.relayer, w.conntrack, w, w.heartbeatProcess())
	return r
}
