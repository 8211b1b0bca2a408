package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

func unread(name, fields string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Annotations: map[string]string{MarkUnreadable: fields}}
}

// What cannot be read closes: a pool gives nothing new and a lost selector selects nothing. All else is in force.
func TestUnreadable(t *testing.T) {
	state, problems := Compile(Objects{
		Pools: []*v1beta1.IPAddressPool{
			{ObjectMeta: unread("a", "spec.quota: too large\nstatus.released: no time"), Spec: v1beta1.IPAddressPoolSpec{Addresses: []string{"192.0.2.0/24"}}},
			{ObjectMeta: unread("b", "spec.sourceRanges: no list"), Spec: v1beta1.IPAddressPoolSpec{Addresses: []string{"198.51.100.0/24"}}},
			{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: v1beta1.IPAddressPoolSpec{Addresses: []string{"203.0.113.0/24"}}},
		},
		L2Advertisements: []*v1beta1.L2Advertisement{
			{ObjectMeta: unread("open", "spec.nodeSelectors: no list")},
			{ObjectMeta: unread("preferred", "spec.preferredNodeSelectors: too large\nstatus.conditions: no time")},
		},
		FloatingIPs: []*v1beta1.FloatingIP{{ObjectMeta: unread("f", "status.boundSince: no time"), Status: v1beta1.FloatingIPStatus{Addresses: []string{"192.0.2.9"}}}},
	}, served())
	var got []string
	for _, p := range state.Pools {
		if p.Unreadable {
			got = append(got, "frozen "+p.Name)
		}
		if p.Restricted && len(p.SourceRanges) == 0 {
			got = append(got, "closed "+p.Name)
		}
		if len(p.Ranges) != 1 {
			t.Errorf("pool %s has ranges %v", p.Name, p.Ranges)
		}
	}
	for _, a := range state.L2Advertisements {
		got = append(got, "in force "+a.Name)
	}
	for _, f := range state.FloatingIPs {
		if f.Problem != nil && f.Problem.Reason == lb.Unreadable && len(f.Addresses) == 1 {
			got = append(got, "held "+f.Key.Name)
		}
	}
	if diff := cmp.Diff([]string{"frozen a", "frozen b", "closed b", "in force preferred", "held f"}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if len(problems) != 7 {
		t.Errorf("problems: %v", problemTexts(problems))
	}
	for _, p := range problems {
		if p.Reason != lb.Unreadable {
			t.Errorf("problem %+v", p)
		}
	}
}

// A FloatingIP whose addresses cannot be read holds those of its record: nobody else may get them.
func TestUnreadableFloatingIP(t *testing.T) {
	meta := unread("f", "status.addresses: no list")
	meta.Namespace, meta.Annotations[v1beta1.AnnotationAssigned] = "n", "for=n/f,192.0.2.8=a"
	f := &v1beta1.FloatingIP{ObjectMeta: meta}
	c, _ := Record(f.UID, origins("192.0.2.9=a"))
	f.Status.Conditions = []metav1.Condition{c}
	state, _ := Compile(Objects{FloatingIPs: []*v1beta1.FloatingIP{f}}, served())
	if got := state.FloatingIPs[0].Addresses; len(got) != 1 || got[0].String() != "192.0.2.9" {
		t.Errorf("it holds %v", got)
	}
}
