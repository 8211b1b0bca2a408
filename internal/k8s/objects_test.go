package k8s

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
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

// writingTo returns a Cluster whose API server accepts every write of an object of this kind as its
// version 8, and the writes so far.
func writingTo(t *testing.T, kind string) (*Cluster, *[]string) {
	t.Helper()
	sent := new([]string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*sent = append(*sent, string(body))
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"apiVersion":"holdfast.dev/v1beta1","kind":"`+kind+`","metadata":{"name":"p","resourceVersion":"8"}}`)
	}))
	t.Cleanup(server.Close)
	clients, err := ClientsFor(&rest.Config{Host: server.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	k, err := New(clients, Config{Kick: func() {}, KickStates: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	return k, sent
}

// TestUpdatePoolConditions: conditions are removed as requested, those of others stay,
// and nothing is written if nothing differs.
func TestUpdatePoolConditions(t *testing.T) {
	k, sent := writingTo(t, "IPAddressPool")
	condition := func(kind string) metav1.Condition { return metav1.Condition{Type: kind, Status: "False", Reason: "R"} }
	status := func(kinds ...string) v1beta1.IPAddressPoolStatus {
		var out v1beta1.IPAddressPoolStatus
		for _, kind := range kinds {
			out.Conditions = append(out.Conditions, condition(kind))
		}
		return out
	}
	for _, tt := range []struct {
		name       string
		have, want v1beta1.IPAddressPoolStatus
		remove     []string
		types      []string
	}{
		{"it goes", status("Valid", "Others", "AddressesFree"), status("Valid"), []string{"AddressesFree"}, []string{"Valid", "Others"}},
		{"it is not there", status("Valid", "Others"), status("Valid"), []string{"AddressesFree"}, nil},
		{"it comes", status("Valid"), status("Valid", "AddressesFree"), nil, []string{"Valid", "AddressesFree"}},
		{"it stands", status("Valid", "AddressesFree"), status("Valid", "AddressesFree"), nil, nil},
	} {
		*sent = nil
		p := &v1beta1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: tt.have}
		tt.want.Conditions = PoolConditions(p, tt.want.Conditions, tt.remove...)
		wrote, err := k.UpdatePool(t.Context(), p, tt.want)
		if err != nil || wrote != (tt.types != nil) || wrote != (len(*sent) == 1) {
			t.Errorf("%s: wrote %v, %q, %v", tt.name, wrote, *sent, err)
		}
		var got struct{ Status v1beta1.IPAddressPoolStatus }
		for _, body := range *sent {
			if err := json.Unmarshal([]byte(body), &got); err != nil {
				t.Fatal(err)
			}
		}
		var types []string
		for _, c := range got.Status.Conditions {
			types = append(types, c.Type)
		}
		if diff := cmp.Diff(tt.types, types); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestPoolVersions: each write of a pool fails if the pool has changed, and a write that
// follows the finalizer's does not fail because of it.
func TestPoolVersions(t *testing.T) {
	k, sent := writingTo(t, "IPAddressPool")
	p, err := k.SetPoolFinalizer(t.Context(), &v1beta1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "p", ResourceVersion: "7"}}, true)
	if err != nil {
		t.Fatal(err)
	}
	if wrote, err := k.UpdatePool(t.Context(), p, v1beta1.IPAddressPoolStatus{AssignedIPv4: 1}); err != nil || !wrote {
		t.Fatal(wrote, err)
	}
	var versions []string
	for _, body := range *sent {
		var patch struct{ Metadata metav1.ObjectMeta }
		if err := json.Unmarshal([]byte(body), &patch); err != nil {
			t.Fatal(err)
		}
		versions = append(versions, patch.Metadata.ResourceVersion)
	}
	if diff := cmp.Diff([]string{"7", "8"}, versions); diff != "" {
		t.Errorf("versions of the patches (-want +got):\n%s", diff)
	}
}

// A float64 cannot represent the number of addresses of a /64, and the API server accepts
// only an int64.
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
