package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/bgp/engine"
)

// engineArgument makes the test's program that of a BGP engine.
const engineArgument = "bgp-engine"

// testEngine is the Command of bgp.Config in tests.
var testEngine = []string{os.Args[0], engineArgument}

func TestMain(m *testing.M) {
	if !slices.Contains(os.Args, engineArgument) {
		os.Exit(m.Run())
	}
	if engine.Serve() != nil {
		os.Exit(1)
	}
}

// TestPortsApart: a port that two listeners would take is refused with a sentence, not by a process that ends at each start.
func TestPortsApart(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "holdfast-system")
	for args, want := range map[string]string{
		"--node-name=w1":                        "",
		"--node-name=w1 --metrics-listen=:7948": "", // the heartbeats' is of UDP
		"--node-name=w1 --metrics-listen=:7947": "--metrics-listen and --members-port both have the port 7947",
		"--node-name=w1 --metrics-listen=:9218": "--metrics-listen and --health-listen both have the port 9218",
		"--node-name=w1 --members-port=9219":    "--debug-listen and --members-port both have the port 9219",
	} {
		var s settings
		err := s.parse(strings.Fields(args))
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}
