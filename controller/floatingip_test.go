package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFloatingIPHistory: the holder, since when, and the last three holders.
func TestFloatingIPHistory(t *testing.T) {
	at := func(minute int) metav1.Time { return metav1.NewTime(time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)) }
	until := func(minute int) *v1beta1.Time { return new(v1beta1.NewTime(at(minute).Time)) }
	object := &v1beta1.FloatingIP{}
	step := func(minute int, reason lb.Reason, service, uid string) v1beta1.FloatingIPStatus {
		owned := &ipam.Floating{Assignment: ipam.Assignment{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Reason: reason}}
		if service != "" {
			owned.BoundTo, owned.BoundUID = lb.Key{Namespace: "ns", Name: service}, uid
		}
		object.Status = floatingWrite{object, owned}.status(at(minute))
		return object.Status
	}
	if s := step(0, lb.Available, "", ""); s.Phase != v1beta1.FloatingIPAvailable || s.BoundTo != nil {
		t.Errorf("free: %+v", s)
	}
	step(1, lb.Bound, "a", "1")
	if s := step(2, lb.Bound, "a", "1"); s.Phase != v1beta1.FloatingIPBound || !s.BoundSince.Equal(&until(1).Time) {
		t.Errorf("bound since %v, want minute 1", s.BoundSince)
	}
	step(3, lb.Bound, "b", "2")
	step(4, lb.Bound, "b", "3") // the Service was deleted and created
	step(5, lb.Available, "", "")
	step(6, lb.Bound, "c", "4")
	got := step(7, lb.Available, "", "")
	want := []v1beta1.Holder{
		{Name: "c", UID: "4", Until: until(7)},
		{Name: "b", UID: "3", Until: until(5)},
		{Name: "b", UID: "2", Until: until(4)},
	}
	if diff := cmp.Diff(want, got.RecentHolders); diff != "" || got.BoundSince != nil {
		t.Errorf("recent holders (-want +got):\n%s", diff)
	}
	if s := step(8, lb.PoolExhausted, "", ""); s.Phase != v1beta1.FloatingIPPending || s.Conditions[0].Status != metav1.ConditionFalse {
		t.Errorf("pending: %+v", s)
	}
}
