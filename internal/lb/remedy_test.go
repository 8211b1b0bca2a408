package lb

import (
	"strings"
	"testing"
)

// TestRemedy: a remedy is a sentence without marks of Markdown, and links of the page are paths of the repository.
func TestRemedy(t *testing.T) {
	for reason, want := range map[Reason]string{
		Announced:         "",
		"SomethingNew":    "",
		NoClusterIP:       "Create the Service again without `clusterIP: None`.",
		SessionConnecting: "Wait some seconds.",
		CutOff:            "Repair the network between the nodes: partitions (docs/layer2.md#partitions).",
		NodesUnfiltered: "Run speakers on these nodes (`speaker.tolerations` and `speaker.nodeSelector` of the " +
			"chart), or keep kube-proxy off them: nodes without a speaker (docs/filter.md#nodes-without-a-speaker).",
	} {
		if got := reason.Remedy(); got != want {
			t.Errorf("%s: %q, want %q", reason, got, want)
		}
	}
}

func TestWithRemedies(t *testing.T) {
	const again = "Create the Service again without `clusterIP: None`."
	for name, tt := range map[string]struct {
		message string
		reasons []Reason
		want    string
	}{
		"healthy":              {"has 192.0.2.1 from pool \"a\"", []Reason{Assigned}, "has 192.0.2.1 from pool \"a\""},
		"note":                 {"is read as 192.0.2.0/24", nil, "is read as 192.0.2.0/24"},
		"nothing need be done": {"keeps 192.0.2.1", []Reason{AddressKept, Proxied}, "keeps 192.0.2.1"},
		"of another version":   {"it is odd.", []Reason{"SomethingNew"}, "it is odd."},
		"fault": {
			"the Service has no cluster IP", []Reason{NoClusterIP}, "the Service has no cluster IP. " + again,
		},
		"ends with a full stop": {"it failed. ", []Reason{SessionConnecting}, "it failed. Wait some seconds."},
		"ends with a colon":     {"it failed:", []Reason{SessionConnecting}, "it failed. Wait some seconds."},
		"ends with a cut":       {"it failed …", []Reason{SessionConnecting}, "it failed … Wait some seconds."},
		"says nothing":          {"", []Reason{SessionConnecting}, "Wait some seconds."},
		"one reason twice":      {"a; b", []Reason{NoClusterIP, NoClusterIP}, "a; b. " + again},
		"two reasons": {
			"a; b", []Reason{NoClusterIP, Valid, SessionConnecting}, "a; b. " + again + " Wait some seconds.",
		},
		"lines of others' words": {"refused:\n\x1b[2Jno", []Reason{SessionConnecting}, "refused:  [2Jno. Wait some seconds."},
	} {
		t.Run(name, func(t *testing.T) {
			if got := WithRemedies(tt.message, tt.reasons...); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestLongMessageKeepsRemedy: of a message that is too long the remedy is the part that is not cut.
func TestLongMessageKeepsRemedy(t *testing.T) {
	for _, long := range []string{strings.Repeat("x", 5000), strings.Repeat("é", 5000)} {
		got := WithRemedies(long, SessionConnecting)
		if len(got) > 4096 || len(got) < 4090 || !strings.HasSuffix(got, " … Wait some seconds.") {
			t.Errorf("%d bytes end with %q", len(got), got[len(got)-30:])
		}
		if got := WithRemedies(long, Announced); len(got) > 4096 || !strings.HasSuffix(got, " …") {
			t.Errorf("%d bytes end with %q", len(got), got[len(got)-30:])
		}
	}
	var all []Reason
	for r := range remedies() {
		all = append(all, r)
	}
	if got := WithRemedies("it failed", all...); len(got) > 4096 || !strings.HasPrefix(got, "it failed. ") {
		t.Errorf("all remedies together have %d bytes: %.20q", len(got), got)
	}
}

// TestRemediesOfAllReasons: the message of each Reason with something to do ends with that, in one sentence after
// another.
func TestRemediesOfAllReasons(t *testing.T) {
	if len(remedies()) < 80 {
		t.Fatalf("%d reasons have a line", len(remedies()))
	}
	for reason := range remedies() {
		do := reason.Remedy()
		got := WithRemedies("it failed.", reason)
		if do == "" || strings.HasPrefix(do, "Nothing") {
			if got != "it failed." {
				t.Errorf("%s: %q, and there is nothing to do", reason, got)
			}
			continue
		}
		if got != "it failed. "+do || strings.Contains(got, "..") || !strings.HasSuffix(got, ".") {
			t.Errorf("%s: %q", reason, got)
		}
		if strings.Contains(do, "the message") {
			t.Errorf("%s: %q speaks of the message that it is a part of", reason, do)
		}
	}
}
