package k8s

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
)

func TestStatusPatchRemovesWhatIsGone(t *testing.T) {
	have := v1beta1.FloatingIPStatus{
		Addresses: []string{"192.0.2.1"}, Phase: v1beta1.FloatingIPBound, BoundTo: &v1beta1.Holder{Name: "web", UID: "1"},
	}
	for _, tt := range []struct {
		name string
		want v1beta1.FloatingIPStatus
		json string
	}{
		{"the holder goes", v1beta1.FloatingIPStatus{Addresses: []string{"192.0.2.1"}, Phase: v1beta1.FloatingIPAvailable},
			`{"status":{"addresses":["192.0.2.1"],"boundTo":null,"phase":"Available"}}`},
		{"a field within goes", v1beta1.FloatingIPStatus{Phase: v1beta1.FloatingIPBound, BoundTo: &v1beta1.Holder{Name: "web"}},
			`{"status":{"addresses":null,"boundTo":{"name":"web","uid":null},"phase":"Bound"}}`},
	} {
		patch, err := statusPatch(have, tt.want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(patch)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.json, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// A pool of a /64 has more addresses than a float64 counts, and an API server takes
// nothing else than an int64.
func TestStatusPatchCountsALargePool(t *testing.T) {
	want := v1beta1.IPAddressPoolStatus{AssignedIPv6: 1<<53 + 1, AvailableIPv6: math.MaxInt64}
	patch, err := statusPatch(v1beta1.IPAddressPoolStatus{}, want)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(patch)
	if err != nil {
		t.Fatal(err)
	}
	var got v1beta1.IPAddressPool
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if diff := cmp.Diff(want, got.Status); diff != "" {
		t.Errorf("%s (-want +got):\n%s", body, diff)
	}
}
