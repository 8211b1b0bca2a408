package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// external is a Service of type ClusterIP with these addresses in spec.externalIPs.
func external(name string, ips ...string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "uid-x"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.3.1", ExternalIPs: ips,
			Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

// TestExternalIPsRecorded: the status of a new pool names its ranges and the externalIPs that it found there. A later
// one stays closed: the pool and an Event of the Service say so, once.
func TestExternalIPsRecorded(t *testing.T) {
	pool := &v1beta1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "uid-p"},
		Spec: v1beta1.IPAddressPoolSpec{Addresses: []string{"192.0.2.0/29", "192.0.2.8-192.0.2.9", "2001:db8::/126"}}}
	server := newServer(t, pool, external("had", "192.0.2.1", "2001:db8::1", "198.51.100.1"))
	syncOnce(t, newTestSyncer(t, server))
	after := &v1beta1.IPAddressPool{}
	server.get(t, poolsPath+"/p", after)
	if want := []string{"192.0.2.0-192.0.2.9", "2001:db8::-2001:db8::3"}; !slices.Equal(after.Status.Guarded, want) {
		t.Errorf("it has seen %q, want %q", after.Status.Guarded, want)
	}
	record := []v1beta1.ExternalAddress{{Address: "192.0.2.1", Service: "default/had"},
		{Address: "2001:db8::1", Service: "default/had"}}
	if !slices.Equal(after.Status.ExternalIPs, record) {
		t.Errorf("it records %v, want %v", after.Status.ExternalIPs, record)
	}

	server.put(t, external("late", "192.0.2.2"))
	s := newTestSyncer(t, server)
	syncOnce(t, s)
	syncOnce(t, s)
	server.get(t, poolsPath+"/p", after)
	if !slices.Equal(after.Status.ExternalIPs, record) {
		t.Errorf("with a late one it records %v, want %v", after.Status.ExternalIPs, record)
	}
	c := after.Status.Conditions[0]
	if c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, `192.0.2.2 (Service "default/late")`) {
		t.Errorf("the pool says %s %s %q", c.Status, c.Reason, c.Message)
	}
	for e := server.event(t); ; e = server.event(t) {
		if e.Reason == string(lb.ExternalIPClosed) && e.InvolvedObject.Kind == "Service" {
			if e.InvolvedObject.Name != "late" || !strings.Contains(e.Message, "192.0.2.2") {
				t.Errorf("Event %s of %s: %q", e.Reason, e.InvolvedObject.Name, e.Message)
			}
			break
		}
	}
	if len(s.closed) != 1 {
		t.Errorf("%v were told", s.closed)
	}
}

// TestForeignMachinesLast: an address that speakers report of a foreign machine, such as a gateway, goes to no Service
// while there are others.
func TestForeignMachinesLast(t *testing.T) {
	pool := &v1beta1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "uid-p"},
		Spec: v1beta1.IPAddressPoolSpec{Addresses: []string{"192.0.2.1-192.0.2.2"}}}
	ours := external("web")
	ours.Spec.Type = corev1.ServiceTypeLoadBalancer
	server := newServer(t, pool, ours)
	s := newTestSyncer(t, server)
	s.speakers.claims = map[netip.Addr]foreignClaim{netip.MustParseAddr("192.0.2.1"): {"00:00:5e:00:01:01", "w1"}}
	syncOnce(t, s)
	if got := config.StatusAddresses(server.service(t, "web")); len(got) != 1 || got[0].String() != "192.0.2.2" {
		t.Errorf("it gets %v", got)
	}
}

// TestNetworksOfNodes: no Service gets what speakers report of the networks of their nodes, from the first decision of
// a leader on.
func TestNetworksOfNodes(t *testing.T) {
	pool := &v1beta1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "uid-p"},
		Spec: v1beta1.IPAddressPoolSpec{Addresses: []string{"192.0.2.0-192.0.2.3"}}}
	state := &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{Name: "w1"}}
	state.Status.Subnets, state.Status.Gateways = []string{"192.0.2.0/24"}, []string{"192.0.2.1"}
	ours := external("web")
	ours.Spec.Type = corev1.ServiceTypeLoadBalancer
	server := newServer(t, pool, state, ours)

	s := newTestSyncer(t, server)
	go func() { _ = s.lead(t.Context()) }()
	var got []netip.Addr
	nstest.Until(t, time.Minute, "an address", func() bool {
		got = config.StatusAddresses(server.service(t, "web"))
		return len(got) > 0
	})
	if fmt.Sprint(got) != "[192.0.2.2]" {
		t.Errorf("it gets %v", got)
	}
}
