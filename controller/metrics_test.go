package main

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestUnannounced: a Service with an address that no node announces has a series of the family, with the reason of the
// protocol that is to announce it.
func TestUnannounced(t *testing.T) {
	const l2, bgp = v1beta1.ConditionAnnouncedL2, v1beta1.ConditionAnnouncedBGP
	says := func(kind string, reason lb.Reason, message string) metav1.Condition {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: string(reason), Message: message}
		if reason == lb.Announced {
			c.Status = metav1.ConditionTrue
		}
		return c
	}
	announcers := func(message string) metav1.Condition { return says(v1beta1.ConditionAnnouncers, lb.Announced, message) }
	for _, tt := range []struct {
		name       string
		conditions []metav1.Condition
		// want has the reasons by family, as "family reason".
		want []string
	}{
		{"no speaker has written anything", nil, []string{"IPv4 ", "IPv6 "}},
		{"layer 2", []metav1.Condition{says(l2, lb.Announced, ""), announcers("192.0.2.1=a,2001:db8::1=b")}, nil},
		{
			"one family of two",
			[]metav1.Condition{says(l2, lb.NoLink, ""), announcers("192.0.2.1=a")}, []string{"IPv6 NoLink"},
		},
		{"an address of before", []metav1.Condition{says(l2, lb.NoEligibleNode, ""), announcers("192.0.2.9=a")},
			[]string{"IPv4 NoEligibleNode", "IPv6 NoEligibleNode"}},
		{"BGP", []metav1.Condition{says(bgp, lb.Announced, "")}, nil},
		{"BGP, and layer 2 no more", []metav1.Condition{says(l2, lb.NoAdvertisement, ""), says(bgp, lb.Announced, "")}, nil},
		{"layer 2, and BGP without a session",
			[]metav1.Condition{
				says(l2, lb.Announced, ""), announcers("192.0.2.1=a,2001:db8::1=b"), says(bgp, lb.NoSession, ""),
			}, nil},
		{
			"BGP without a session",
			[]metav1.Condition{says(l2, lb.NoAdvertisement, ""), says(bgp, lb.NoSession, "")},
			[]string{"IPv4 NoSession", "IPv6 NoSession"},
		},
		{"neither of both", []metav1.Condition{says(l2, lb.AddressConflict, ""), says(bgp, lb.NoSession, "")},
			[]string{"IPv4 AddressConflict", "IPv6 AddressConflict"}},
		{"no advertisement", []metav1.Condition{says(l2, lb.NoAdvertisement, ""), says(bgp, lb.NoAdvertisement, "")},
			[]string{"IPv4 NoAdvertisement", "IPv6 NoAdvertisement"}},
	} {
		key := lb.Key{Namespace: "ns", Name: "web"}
		a := &ipam.Assignment{Key: key, Reason: lb.Assigned, Addresses: []netip.Addr{
			netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"),
		}}
		sv := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
			Status:     corev1.ServiceStatus{Conditions: tt.conditions},
		}
		m := &metrics{listServices: listing(sv)}
		waits, got := m.serviceStates([]*ipam.Assignment{a, {Key: lb.Key{Name: "gone"}}})
		ok := len(got) == len(tt.want) && len(waits) == 0
		for _, w := range tt.want {
			family, reason, _ := strings.Cut(w, " ")
			ok = ok && got[[4]string{"ns", "web", family, reason}]
		}
		if !ok {
			t.Errorf("%s: %v, %v, want %q", tt.name, got, waits, tt.want)
		}
	}
}

func listing(services ...*corev1.Service) func() lb.Map[lb.Key, *corev1.Service] {
	var m lb.Map[lb.Key, *corev1.Service]
	for _, s := range services {
		m = m.Put(lb.Key{Namespace: s.Namespace, Name: s.Name}, s)
	}
	return func() lb.Map[lb.Key, *corev1.Service] { return m }
}

// TestLooksAgain: a Service is read again only when it or its assignment changed.
func TestLooksAgain(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	service := func(announced string) *corev1.Service {
		sv := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
		sv.Status.Conditions = []metav1.Condition{
			{Type: v1beta1.ConditionAnnouncers, Status: metav1.ConditionTrue, Message: announced},
			{
				Type: v1beta1.ConditionAddressAssigned, Status: metav1.ConditionFalse,
				LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour)),
			},
		}
		return sv
	}
	assigned := func(reason lb.Reason, addresses ...netip.Addr) *ipam.Assignment {
		return &ipam.Assignment{Key: lb.Key{Name: "web"}, Reason: reason, Addresses: addresses}
	}
	m, reads := &metrics{}, 0
	announced, withdrawn := service("192.0.2.1=a"), service("")
	first, both, waiting := assigned(lb.Assigned, v4), assigned(lb.Assigned, v4, v6), assigned(lb.PoolExhausted)
	for i, tt := range []struct {
		service       *corev1.Service
		a             *ipam.Assignment
		rows, waiting int
		reads         int
	}{
		{announced, first, 0, 0, 1}, {announced, first, 0, 0, 1}, {withdrawn, first, 1, 0, 2}, {withdrawn, first, 1, 0, 2},
		{announced, first, 0, 0, 3}, {announced, both, 1, 0, 4}, {announced, waiting, 0, 1, 5}, {announced, waiting, 0, 1, 5},
	} {
		m.listServices = func() lb.Map[lb.Key, *corev1.Service] {
			return lb.Map[lb.Key, *corev1.Service]{}.Put(tt.a.Key, tt.service)
		}
		before := m.services.Of(tt.a.Key)
		waits, rows := m.serviceStates([]*ipam.Assignment{tt.a})
		if m.services.Of(tt.a.Key) != before {
			reads++
		}
		if len(rows) != tt.rows || len(waits) != tt.waiting || reads != tt.reads {
			t.Errorf("look %d: %v, %v after %d reads, want %+v", i, waits, rows, reads, tt)
		}
	}
}

// TestUnannouncedIsBounded: a user who creates many Services causes no more series than the bound.
func TestUnannouncedIsBounded(t *testing.T) {
	var services []*corev1.Service
	var assignments []*ipam.Assignment
	for i := range daemon.MaxNamed + 10 {
		k := lb.Key{Name: fmt.Sprintf("s%05d", i)}
		services = append(services, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: k.Name}})
		assignments = append(assignments,
			&ipam.Assignment{Key: k, Reason: lb.Assigned, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
	}
	m := &metrics{listServices: listing(services...)}
	if _, rows := m.serviceStates(assignments); len(rows) != daemon.MaxNamed {
		t.Errorf("%d series", len(rows))
	}
}

// TestPendingAge: the age belongs to the Service that has waited longest for this reason, since it last had an address.
func TestPendingAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		services := map[lb.Key]*corev1.Service{}
		var list []*corev1.Service
		last := &runResult{}
		add := func(reason lb.Reason, status metav1.ConditionStatus, ago time.Duration) {
			k := lb.Key{Name: fmt.Sprint("s", len(services))}
			services[k] = &corev1.Service{ObjectMeta: metav1.ObjectMeta{
				Name: k.Name, CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour)),
			}}
			if status != "" {
				c := metav1.Condition{
					Type: v1beta1.ConditionAddressAssigned, Status: status,
					LastTransitionTime: metav1.NewTime(time.Now().Add(-ago)),
				}
				services[k].Status.Conditions = []metav1.Condition{c}
			}
			list = append(list, services[k])
			last.Result.Assignments = append(last.Result.Assignments, &ipam.Assignment{Key: k, Reason: reason})
		}
		add(lb.PoolExhausted, metav1.ConditionFalse, 20*time.Second)
		add(lb.PoolExhausted, metav1.ConditionFalse, 90*time.Second)
		add(lb.PoolExhausted, metav1.ConditionFalse, 30*time.Second)
		add(lb.NoPool, metav1.ConditionFalse, 5*time.Second)
		add(lb.NoPool, metav1.ConditionTrue, 50*time.Second) // it has just lost its address
		add(lb.NoPool, "", 0)                                // it is new
		add(lb.AddressKept, metav1.ConditionFalse, time.Hour)
		m := &metrics{listServices: listing(list...)}
		m.last.Store(last)
		time.Sleep(time.Second)
		want := `# HELP holdfast_service_pending_seconds How long the Service that has waited longest for an address has waited, by reason.
# TYPE holdfast_service_pending_seconds gauge
holdfast_service_pending_seconds{reason="NoPool"} 6
holdfast_service_pending_seconds{reason="PoolExhausted"} 91
`
		must(t, testutil.CollectAndCompare(m, strings.NewReader(want), "holdfast_service_pending_seconds"))
		if problems, err := testutil.CollectAndLint(m); err != nil || problems != nil {
			t.Errorf("%v, %v", problems, err)
		}
	})
}

// TestIsLeaderMetric: every replica reports whether it leads, and a former leader has no other metric.
func TestIsLeaderMetric(t *testing.T) {
	s := newTestSyncer(t, newServer(t))
	expect := func(leads int) {
		t.Helper()
		want := fmt.Sprintf(`# HELP holdfast_controller_is_leader 1 if this controller leads: it has decided at least once and alone assigns addresses.
# TYPE holdfast_controller_is_leader gauge
holdfast_controller_is_leader %d
`, leads)
		must(t, testutil.CollectAndCompare(s, strings.NewReader(want), "holdfast_controller_is_leader"))
		if n := testutil.CollectAndCount(s); (n == 1) != (leads == 0) {
			t.Errorf("%d metrics, leads %d", n, leads)
		}
	}
	expect(0)

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.lead(ctx) }()
	nstest.Until(t, time.Minute, "the first decision", func() bool { return s.last.Load() != nil })
	expect(1)

	stop()
	must(t, <-ended)
	expect(0)
	for what, kept := range map[string]any{"the compiler": &s.compiler, "the metrics of Services": &s.services} {
		if !reflect.ValueOf(kept).Elem().IsZero() {
			t.Errorf("a former leader keeps the memory of %s", what)
		}
	}
}
