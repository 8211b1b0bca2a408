package lb

import "testing"

// TestRemedy: a remedy is a sentence without marks of Markdown, and links of the page are paths of the repository.
func TestRemedy(t *testing.T) {
	for reason, want := range map[Reason]string{
		Announced:         "",
		"SomethingNew":    "",
		NoClusterIP:       "Create the Service again without `clusterIP: None`.",
		SessionConnecting: "Wait some seconds.",
		CutOff:            "Repair the network between the nodes: partitions (docs/layer2.md#partitions).",
		InvalidCommunity:  "Write two numbers up to 65535 (65000:100), `large:` and three numbers, or a known name.",
	} {
		if got := reason.Remedy(); got != want {
			t.Errorf("%s: %q, want %q", reason, got, want)
		}
	}
}
