package main

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/memo"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	assignedDesc = prometheus.NewDesc("holdfast_pool_assigned_addresses",
		"Addresses of a pool that Services hold.", []string{"pool", "family"}, nil)
	availableDesc = prometheus.NewDesc("holdfast_pool_available_addresses",
		"Addresses of a pool that can still be assigned.", []string{"pool", "family"}, nil)
	quarantinedDesc = prometheus.NewDesc("holdfast_pool_quarantined_addresses",
		"Free addresses of a pool that wait for its reuseDelay.", []string{"pool", "family"}, nil)
	retainedDesc = prometheus.NewDesc("holdfast_pool_retained_addresses",
		"Addresses that are held although they were removed from their pool.", []string{"pool"}, nil)
	floatingIPsDesc = prometheus.NewDesc("holdfast_floating_ips",
		"FloatingIPs, by the reason of their state.", []string{"reason"}, nil)
	servicesDesc = prometheus.NewDesc("holdfast_services",
		"Services served, by the reason of their assignment.", []string{"reason"}, nil)
	pendingDesc = prometheus.NewDesc("holdfast_service_pending_seconds",
		"How long the Service that has waited longest for an address has waited, by reason.", []string{"reason"}, nil)
	unannouncedDesc = prometheus.NewDesc("holdfast_service_unannounced",
		"1 for each Service with an address that no node announces, by the reason that speakers report, "+
			"empty while they report none; the first 2,000 series by age.",
		[]string{"namespace", "service", "family", "reason"}, nil)
	isLeaderDesc = prometheus.NewDesc("holdfast_controller_is_leader",
		"1 if this controller leads: it has decided at least once and alone assigns addresses.", nil, nil)
	slicesDesc = prometheus.NewDesc("holdfast_egress_slices",
		"Parts of the ports of addresses that pods send from, by state: used, resting after the last pod, "+
			"and refused to pods because no part was left.", []string{"state"}, nil)
	problemsDesc = prometheus.NewDesc("holdfast_problems",
		"Problems that a user must fix: of the configuration (controller) and of the node (speaker).",
		[]string{"kind", "reason"}, nil)
)

// metrics are the metrics of a syncer.
type metrics struct {
	listServices func() lb.Map[lb.Key, *corev1.Service]
	// mu guards services, which has the results of the last scrape.
	mu       sync.Mutex
	services memo.Table[lb.Key, serviceObservation, serviceMetrics]
	// last is the result of the last run, which /debug/state shows too; nil unless this replica leads.
	last atomic.Pointer[runResult]
}

// runResult is the result of one run.
type runResult struct {
	Result   ipam.Result
	Slices   ipam.SliceResult
	Problems []lb.Problem
}

// drop drops all results, as of a replica that does not lead.
func (m *metrics) drop() {
	m.last.Store(nil)

	m.mu.Lock()
	defer m.mu.Unlock()
	m.services = memo.Table[lb.Key, serviceObservation, serviceMetrics]{}
}

// Describe implements prometheus.Collector. It describes nothing, because only the leader has most of the metrics.
func (m *metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. It computes gauges from the last run, so they cannot be stale. A replica
// that does not lead only has isLeaderDesc.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}

	last := m.last.Load()
	if last == nil {
		gauge(isLeaderDesc, 0)
		return
	}

	gauge(isLeaderDesc, 1)
	collectPools(last.Result.Pools, gauge)
	collectReasons(last, gauge)
	collectSlices(last.Slices, gauge)

	waits, unannounced := m.serviceStates(last.Result.Assignments)
	for reason, d := range waits {
		gauge(pendingDesc, int64(d.Seconds()), string(reason))
	}

	for labels := range unannounced {
		gauge(unannouncedDesc, 1, labels[:]...)
	}
}

// gaugeFunc sends one gauge of a scrape, with the values of its labels.
type gaugeFunc func(d *prometheus.Desc, value int64, labels ...string)

// collectPools sends the usage of each pool.
func collectPools(pools []ipam.Usage, gauge gaugeFunc) {
	for _, u := range pools {
		collectCounts(u.IPv4, u.Pool, lb.IPv4, gauge)
		collectCounts(u.IPv6, u.Pool, lb.IPv6, gauge)
		gauge(retainedDesc, u.RetainedCount, u.Pool)
	}
}

// collectCounts sends the usage of a pool by one family.
func collectCounts(c ipam.Counts, pool string, f lb.Family, gauge gaugeFunc) {
	family := string(f)
	gauge(assignedDesc, c.Assigned, pool, family)
	gauge(availableDesc, c.Available, pool, family)
	gauge(quarantinedDesc, c.Quarantined, pool, family)
}

// collectReasons counts FloatingIPs, Services and Problems by reason.
func collectReasons(last *runResult, gauge gaugeFunc) {
	floating := map[lb.Reason]int64{}
	for _, f := range last.Result.FloatingIPs {
		floating[f.Reason]++
	}

	for reason, n := range floating {
		gauge(floatingIPsDesc, n, string(reason))
	}

	services := map[lb.Reason]int64{}
	for _, a := range last.Result.Assignments {
		services[a.Reason]++
	}

	for reason, n := range services {
		gauge(servicesDesc, n, string(reason))
	}

	problems := map[[2]string]int64{}
	for _, p := range last.Problems {
		if p.Note {
			continue
		}
		labels := [2]string{p.Object.Kind, string(p.Reason)}
		problems[labels]++
	}

	for labels, n := range problems {
		gauge(problemsDesc, n, labels[:]...)
	}
}

// collectSlices counts slices by their state.
func collectSlices(r ipam.SliceResult, gauge gaugeFunc) {
	resting := int64(0)
	for _, s := range r.Slices {
		if !s.Released.IsZero() {
			resting++
		}
	}

	gauge(slicesDesc, int64(len(r.Slices))-resting, "used")
	gauge(slicesDesc, resting, "resting")
	gauge(slicesDesc, int64(len(r.Refused)), "refused")
}

// serviceObservation is what the metrics of a Service depend on.
type serviceObservation struct {
	service    *corev1.Service
	assignment *ipam.Assignment
}

// equal reports whether two observations are equal.
func (o serviceObservation) equal(p serviceObservation) bool {
	return o.service == p.service && o.assignment.Equal(p.assignment)
}

// keep returns a copy that shares no memory with the other assignments of its run.
func (o serviceObservation) keep() serviceObservation {
	o.assignment = new(*o.assignment)
	return o
}

// serviceMetrics is the state of a Service at a scrape.
type serviceMetrics struct {
	// pendingSince is the time from which it waits for an address; zero if it does not wait.
	pendingSince time.Time
	// unannounced are the families of its addresses that no node announces.
	unannounced []lb.Family
	// reason is the reason for that, as speakers report it.
	reason lb.Reason
}

// serviceStates returns for each reason the time for which the oldest Service without an address has waited, and the
// labels of unannouncedDesc. Speakers write after the last run, so it reads the present Services; unchanged ones are
// not read again.
func (m *metrics) serviceStates(
	assignments []*ipam.Assignment,
) (waits map[lb.Reason]time.Duration, unannounced map[[4]string]bool) {
	waits = map[lb.Reason]time.Duration{}
	unannounced = map[[4]string]bool{}
	services := m.listServices()
	observed := make(map[lb.Key]serviceObservation, len(assignments))
	keys := make([]lb.Key, 0, len(assignments))
	for _, a := range assignments {
		sv, ok := services.Get(a.Key)
		if ok {
			observed[a.Key] = serviceObservation{service: sv, assignment: a}
			keys = append(keys, a.Key)
		}
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	m.services.Update(keys, time.Now(), memo.Function[lb.Key, serviceObservation, serviceMetrics]{
		Inputs:  func(key lb.Key) serviceObservation { return observed[key] },
		Keep:    serviceObservation.keep,
		Equal:   serviceObservation.equal,
		Compute: newServiceMetrics,
	})

	for _, key := range keys {
		state := m.services.Of(key)
		if !state.pendingSince.IsZero() {
			reason := observed[key].assignment.Reason
			waits[reason] = max(waits[reason], time.Since(state.pendingSince))
		}

		for _, family := range state.unannounced {
			if len(unannounced) == daemon.MaxNamed {
				break
			}

			labels := [4]string{
				key.Namespace,
				key.Name,
				string(family),
				string(state.reason),
			}
			unannounced[labels] = true
		}
	}

	return waits, unannounced
}

// newServiceMetrics returns the state of a Service, as its conditions report it.
func newServiceMetrics(_ lb.Key, o serviceObservation, _ *memo.Clock) (out serviceMetrics) {
	sv, a := o.service, o.assignment
	if !hasAddressReasons[a.Reason] {
		c := meta.FindStatusCondition(sv.Status.Conditions, v1beta1.ConditionAddressAssigned)
		if c != nil && c.Status == metav1.ConditionFalse {
			out.pendingSince = c.LastTransitionTime.Time
		}
		return out
	}

	reason := announceReason(sv)
	if reason == lb.Announced {
		return out
	}

	announcedBy := config.AnnouncedBy(sv)
	for _, address := range a.Addresses {
		if announcedBy.Of(address) == "" {
			out.unannounced = append(out.unannounced, lb.FamilyOf(address))
			out.reason = reason
		}
	}

	return out
}

// announceReason returns the reason why nodes do not announce all addresses of a Service, as speakers report; "" if
// they report none. It returns Announced if a protocol announces all addresses.
func announceReason(sv *corev1.Service) (reason lb.Reason) {
	for _, kind := range []string{v1beta1.ConditionAnnouncedL2, v1beta1.ConditionAnnouncedBGP} {
		c := meta.FindStatusCondition(sv.Status.Conditions, kind)
		if c == nil {
			continue
		}

		isMoreUseful := reason == "" || reason == lb.NoAdvertisement
		if c.Status == metav1.ConditionTrue || isMoreUseful {
			reason = lb.Reason(c.Reason)
		}
	}

	return reason
}
