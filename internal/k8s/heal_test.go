package k8s

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestUnreadableStatusIsOverwritten: the controller replaces what it cannot read in a status that it owns, also by nothing.
func TestUnreadableStatusIsOverwritten(t *testing.T) {
	meta := func(fields string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "p", Namespace: "n", ResourceVersion: "7", Annotations: map[string]string{config.MarkUnreadable: fields}}
	}
	k, sent := writingTo(t, "IPAddressPool")
	pool := &v1beta1.IPAddressPool{ObjectMeta: meta("status.retained: no time\nstatus.assignedIPv4: too large"),
		Status: v1beta1.IPAddressPoolStatus{AssignedIPv6: 1}}
	if wrote, err := k.UpdatePool(t.Context(), pool, v1beta1.IPAddressPoolStatus{AssignedIPv6: 1, AssignedIPv4: 2}); err != nil || !wrote {
		t.Fatal(wrote, err)
	}
	pool.Annotations = nil
	if wrote, err := k.UpdatePool(t.Context(), pool, pool.Status); err != nil || wrote {
		t.Errorf("a pool that can be read was written: %v %v", wrote, err)
	}
	f := &v1beta1.FloatingIP{ObjectMeta: meta("spec.addresses: no list\nstatus.boundTo: no name\nstatus.addresses: no list")}
	want := v1beta1.FloatingIPStatus{Addresses: []string{"192.0.2.1"}, BoundTo: &v1beta1.Holder{Name: "web", UID: "1"}}
	if wrote, err := k.UpdateFloatingIP(t.Context(), f, FloatingIPUpdate{Status: want}); err != nil || !wrote {
		t.Fatal(wrote, err)
	}
	var got []any
	for _, body := range *sent {
		var patch map[string]any
		if err := json.Unmarshal([]byte(body), &patch); err != nil {
			t.Fatal(err)
		}
		got = append(got, patch["status"])
	}
	if diff := cmp.Diff([]any{
		map[string]any{"assignedIPv4": 2.0, "assignedIPv6": 1.0, "retained": nil},
		map[string]any{"addresses": []any{"192.0.2.1"}, "boundTo": nil},
	}, got, cmp.FilterPath(func(p cmp.Path) bool {
		key, is := p.Last().(cmp.MapIndex)
		name := ""
		if is {
			name = key.Key().String()
		}
		return name != "" && name != "assignedIPv4" && name != "assignedIPv6" && name != "retained" && name != "addresses" && name != "boundTo"
	}, cmp.Ignore())); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestSpeakerOverwritesItsState: what a speaker writes of itself names every field that the schema has but those that
// others own. A merge patch leaves the rest as it is, readable or not.
func TestSpeakerOverwritesItsState(t *testing.T) {
	body, err := json.Marshal(v1beta1.SpeakerStateStatus{Observed: new(metav1.NowMicro())})
	if err != nil {
		t.Fatal(err)
	}
	var written map[string]any
	if err := json.Unmarshal(body, &written); err != nil {
		t.Fatal(err)
	}
	for _, c := range readCRDs(t) {
		if c.name != "SpeakerState" {
			continue
		}
		for name := range c.schema.Properties["status"].Properties {
			if _, named := written[name]; !named && name != "conditions" {
				t.Errorf("status.%s would stay as it is", name)
			}
		}
		for _, name := range []string{"members", "owned"} {
			for within := range c.schema.Properties["status"].Properties[name].Properties {
				if _, named := written[name].(map[string]any)[within]; !named {
					t.Errorf("status.%s.%s would stay as it is", name, within)
				}
			}
		}
	}
}
