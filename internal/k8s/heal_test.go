package k8s

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
)

// TestSpeakerOverwritesItsState: what a speaker writes of itself names every field that the schema has but those that
// others own. A merge patch leaves the rest as it is, readable or not.
func TestSpeakerOverwritesItsState(t *testing.T) {
	body, err := json.Marshal(v1beta1.SpeakerStateStatus{Observed: new(v1beta1.NewMicroTime(time.Now()))})
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
