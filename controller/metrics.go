package main

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	pendingDesc = prometheus.NewDesc("holdfast_service_pending_seconds",
		"How long the Service that has waited longest for an address has waited, by reason.", []string{"reason"}, nil)
	unannouncedDesc = prometheus.NewDesc(
		"holdfast_service_unannounced",
		"1 for each Service with an address that no node announces, by the reason that speakers report, empty while they report none; the first 2,000 "+
			"series by age.",
		[]string{"namespace", "service", "family", "reason"},
		nil,
	)
	repairsDesc = prometheus.NewDesc(
		"holdfast_repairs_total",
		"Repairs of drift, by kind.",
		nil,
		prometheus.Labels{"kind": "plan"},
	)
	isLeaderDesc = prometheus.NewDesc("holdfast_controller_is_leader",
		"1 if this controller leads: it has decided at least once and alone assigns addresses.", nil, nil)
	problemsDesc = prometheus.NewDesc(
		"holdfast_problems",
		"Problems that a user must fix: of the configuration (controller) and of the node (speaker).",
		[]string{"kind", "reason"},
		nil,
	)
)

// metrics of a syncer.
type metrics struct {
	services func() lb.Map[lb.Key, config.Held[corev1.Service]]
	// looked has what the last look found; mu guards it.
	looked map[lb.Key]looked
	mu     sync.Mutex
	// last is the outcome of the last run, which /debug/state shows too; nil unless this replica leads.
	last atomic.Pointer[outcome]
	// repairs counts the decisions that were to be others, and the Services of which something was to be written, than
	// what is remembered says.
	repairs atomic.Int64
}

// outcome is the result of one run.
type outcome struct {
	Result   ipam.Result
	Problems []lb.Problem
}

// Describe implements prometheus.Collector. It describes nothing: most metrics are of the leader only.
func (m *metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector: gauges are computed from the last run,
// so they cannot go stale. A replica that does not lead has only isLeaderDesc.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}

	last := m.last.Load()
	if last == nil {
		gauge(isLeaderDesc, 0)
		return
	}
	gauge(isLeaderDesc, 1)

	ch <- prometheus.MustNewConstMetric(repairsDesc, prometheus.CounterValue, float64(m.repairs.Load()))
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
	waits, unannounced := m.states(last.Result.Assignments)
	for reason, d := range waits {
		gauge(pendingDesc, int64(d.Seconds()), string(reason))
	}
	for row := range unannounced {
		gauge(unannouncedDesc, 1, row[:]...)
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

// looked is what the last look found of a Service.
type looked struct {
	of         config.Held[corev1.Service]
	assignment *ipam.Assignment
	// pending is since when it waits for an address; zero if it does not.
	pending time.Time
	// unannounced are the families of its addresses that no node announces, for the reason that speakers report.
	unannounced []lb.Family
	reason      lb.Reason
}

// states returns how long the oldest Service without an address has waited, by reason, and the rows of unannouncedDesc.
// Speakers write after the last run, so it reads the Services as they are: those that changed.
func (m *metrics) states(
	assignments []*ipam.Assignment,
) (waits map[lb.Reason]time.Duration, unannounced map[[4]string]bool) {
	waits, unannounced = map[lb.Reason]time.Duration{}, map[[4]string]bool{}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.looked == nil {
		m.looked = map[lb.Key]looked{}
	}
	services := m.services()
	for _, a := range assignments {
		h, there := services.Get(a.Key)
		if !there {
			continue
		}
		last := m.looked[a.Key]
		if last.of != h || last.assignment != a {
			last = look(h, a)
			m.looked[a.Key] = last
		}
		if !last.pending.IsZero() {
			waits[a.Reason] = max(waits[a.Reason], time.Since(last.pending))
		}
		for _, family := range last.unannounced {
			if len(unannounced) < daemon.MaxNamed {
				unannounced[[4]string{a.Key.Namespace, a.Key.Name, string(family), string(last.reason)}] = true
			}
		}
	}
	maps.DeleteFunc(m.looked, func(k lb.Key, _ looked) bool { return !services.Has(k) })
	return waits, unannounced
}

func look(h config.Held[corev1.Service], a *ipam.Assignment) looked {
	sv, found := h.Read(), looked{of: h, assignment: a}
	if !given[a.Reason] {
		if c := meta.FindStatusCondition(sv.Status.Conditions, v1beta1.ConditionAddressAssigned); c != nil &&
			c.Status == metav1.ConditionFalse {
			found.pending = c.LastTransitionTime.Time
		}
		return found
	}
	by, reason := config.AnnouncedBy(sv), withheld(sv)
	for _, address := range a.Addresses {
		if by.Of(address) == "" && reason != lb.Announced {
			found.unannounced, found.reason = append(found.unannounced, lb.FamilyOf(address)), reason
		}
	}
	return found
}

// withheld is why nodes do not announce all addresses of a Service, as speakers report; empty if they do not, and
// Announced if a protocol announces all.
func withheld(sv *corev1.Service) (reason lb.Reason) {
	for _, kind := range []string{v1beta1.ConditionAnnouncedL2, v1beta1.ConditionAnnouncedBGP} {
		c := meta.FindStatusCondition(sv.Status.Conditions, kind)
		if c != nil && (c.Status == metav1.ConditionTrue || reason == "" || reason == lb.NoAdvertisement) {
			reason = lb.Reason(c.Reason)
		}
	}
	return reason
}
