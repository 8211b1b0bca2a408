package main

import (
	"sync/atomic"

	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/prometheus/client_golang/prometheus"
)

var (
	assignedDesc = prometheus.NewDesc("holdfast_pool_assigned_addresses",
		"Addresses of a pool that Services hold.", []string{"pool", "family"}, nil)
	availableDesc = prometheus.NewDesc("holdfast_pool_available_addresses",
		"Addresses of a pool that can still be given.", []string{"pool", "family"}, nil)
	quarantinedDesc = prometheus.NewDesc("holdfast_pool_quarantined_addresses",
		"Free addresses of a pool that wait for its reuseDelay.", []string{"pool", "family"}, nil)
	retainedDesc = prometheus.NewDesc("holdfast_pool_retained_addresses",
		"Addresses that are held although they were cut from their pool.", []string{"pool"}, nil)
	floatingIPsDesc = prometheus.NewDesc("holdfast_floating_ips",
		"FloatingIPs, by the reason of their state.", []string{"reason"}, nil)
	servicesDesc = prometheus.NewDesc("holdfast_services",
		"Services served, by the reason of their assignment.", []string{"reason"}, nil)
	problemsDesc = prometheus.NewDesc("holdfast_problems",
		"Problems that a user must fix: of the configuration (controller) and of the node (speaker).", []string{"kind", "reason"}, nil)
)

// metrics of a syncer.
type metrics struct {
	// last is the outcome of the last run, which /debug/state shows too.
	last atomic.Pointer[outcome]
}

// outcome is the result of one run.
type outcome struct {
	Result   ipam.Result
	Problems []lb.Problem
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{assignedDesc, availableDesc, quarantinedDesc, retainedDesc, floatingIPsDesc, servicesDesc, problemsDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector: gauges are computed from the last run,
// so they cannot go stale. A replica that does not lead has none.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	last := m.last.Load()
	if last == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	for _, u := range last.Result.Pools {
		gauge(assignedDesc, u.IPv4.Assigned, u.Pool, string(lb.IPv4))
		gauge(assignedDesc, u.IPv6.Assigned, u.Pool, string(lb.IPv6))
		gauge(availableDesc, u.IPv4.Available, u.Pool, string(lb.IPv4))
		gauge(availableDesc, u.IPv6.Available, u.Pool, string(lb.IPv6))
		gauge(quarantinedDesc, u.IPv4.Quarantined, u.Pool, string(lb.IPv4))
		gauge(quarantinedDesc, u.IPv6.Quarantined, u.Pool, string(lb.IPv6))
		gauge(retainedDesc, u.RetainedCount, u.Pool)
	}
	floating, services := map[lb.Reason]int64{}, map[lb.Reason]int64{}
	for _, f := range last.Result.FloatingIPs {
		floating[f.Reason]++
	}
	for _, a := range last.Result.Assignments {
		services[a.Reason]++
	}
	for reason, n := range floating {
		gauge(floatingIPsDesc, n, string(reason))
	}
	for reason, n := range services {
		gauge(servicesDesc, n, string(reason))
	}
	problems := map[[2]string]int64{}
	for _, p := range last.Problems {
		if !p.Note {
			problems[[2]string{p.Object.Kind, string(p.Reason)}]++
		}
	}
	for k, n := range problems {
		gauge(problemsDesc, n, k[0], k[1])
	}
}
