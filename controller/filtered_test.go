package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestFiltered(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	var many []netip.Prefix
	for i := range 7 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 16))
	}
	deny := []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}
	bad := lb.Problem{Reason: lb.InvalidSourceRange, Message: "cannot read x"}
	worse := lb.Problem{Reason: lb.InvalidLimit, Message: "no number"}
	other := lb.Problem{Reason: lb.AnnotationIgnored, Message: "not of the filter"}
	sv := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	open := sv.DeepCopy()
	for i := range 7 {
		open.Spec.Ports = append(open.Spec.Ports, corev1.ServicePort{NodePort: int32(30000 + i)})
	}
	cluster := netip.MustParseAddr("10.96.0.1")
	const alike = "; the cluster's own pods and nodes are sources like any other"
	const each = ", for each port of each address on each node"
	for _, tt := range []struct {
		name  string
		write serviceWrite
		want  string
	}{
		{"open", serviceWrite{frontends: []lb.Frontend{{Address: v4}}, problems: []lb.Problem{other}}, ""},
		{"no address yet", serviceWrite{}, ""},
		{"ranges, once for all ports", serviceWrite{frontends: []lb.Frontend{
			{Address: v4, Port: 80, Access: lb.Access{Restricted: true, Allow: many, Deny: deny}}, {Address: v4, Port: 81, Access: lb.Access{Restricted: true,
				Allow: many, Deny: deny}},
			{Address: v6, Port: 80, Access: lb.Access{Restricted: true}},
		}}, "True Filtered: 192.0.2.1: from 10.0.0.0/16, 10.1.0.0/16, 10.2.0.0/16, 10.3.0.0/16, 10.4.0.0/16 and 2 more but 10.9.0.0/16; 2001:db8::1: from no client" +
			alike},
		{"deny, limits and a log", serviceWrite{frontends: []lb.Frontend{{Address: v4, Access: lb.Access{Deny: deny, ConnectionLimit: 5, RateLimit: 2,
			LogDrops: true}}}},
			"True Filtered: 192.0.2.1: from everybody but 10.9.0.0/16" + alike + "; at most 5 connections at once" + each +
				"; at most 2 new connections per second of one source" + each + "; what is refused is logged in samples"},
		{"the cluster comes in too", serviceWrite{frontends: []lb.Frontend{{Address: v4, Access: lb.Access{Restricted: true}, ClusterIP: cluster}}},
			"True Filtered: 192.0.2.1: from no client; the cluster's own pods and nodes may come in too"},
		{"node ports", serviceWrite{service: open, frontends: []lb.Frontend{{Address: v4, Access: lb.Access{Restricted: true}}}},
			"True Filtered: 192.0.2.1: from no client" + alike + "; everybody may come in by the node ports (30000, 30001, 30002, 30003, 30004 and 2 more): " +
				"set spec.allocateLoadBalancerNodePorts to false and remove nodePort from spec.ports"},
		{"node ports of an open Service", serviceWrite{service: open, frontends: []lb.Frontend{{Address: v4}}}, ""},
		{"what cannot be read comes first", serviceWrite{frontends: []lb.Frontend{{Address: v4, Access: lb.Access{Restricted: true}}}, problems: []lb.Problem{bad,
			other, worse}},
			"False InvalidSourceRange: cannot read x; no number; 192.0.2.1: from no client" + alike},
	} {
		got := ""
		if tt.write.service == nil {
			tt.write.service = sv
		}
		if c, said := tt.write.filtered(); said {
			got = fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestHonouredLeavesTheFilterOut: no problem shows in both conditions.
func TestHonouredLeavesTheFilterOut(t *testing.T) {
	w := serviceWrite{assignment: &ipam.Assignment{Reason: lb.Assigned}, problems: []lb.Problem{{Reason: lb.InvalidLimit, Message: "no number"}}}
	if c, said := w.honoured(); said {
		t.Errorf("AnnotationsHonoured says %s", c.Message)
	}
}

// TestEachRuleShows: each rule of access shows in the condition, even alone, and no rule shows nothing.
func TestEachRuleShows(t *testing.T) {
	server := &apiServer{objects: map[string]map[string]any{}}
	server.put(t, poolsPath, lan())
	rules := map[string]string{config.AnnotationSourceRangesDeny: "10.9.0.0/16", config.AnnotationConnectionLimit: "5", config.AnnotationRateLimit: "2",
		config.AnnotationLogDrops: "true", "example.org/other": "x"}
	name := func(rule string) string { return "s-" + strings.ReplaceAll(rule, "/", "-") }
	for rule, value := range rules {
		sv := loadBalancer(name(rule))
		metav1.SetMetaDataAnnotation(&sv.ObjectMeta, rule, value)
		server.put(t, servicesPath, sv)
	}
	s := newTestSyncer(t, server)
	s.speakers.unfiltered.known = true
	refreshed(t, s)
	refreshed(t, s) // with the addresses
	for rule := range rules {
		var sv corev1.Service
		server.get(t, servicesPath+"/"+name(rule), &sv)
		if c := meta.FindStatusCondition(sv.Status.Conditions, v1beta1.ConditionFiltered); (c != nil) != (rule != "example.org/other") {
			t.Errorf("%s: condition %v", rule, c)
		}
	}
}
