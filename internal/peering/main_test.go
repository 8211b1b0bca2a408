package peering

import (
	"os"
	"slices"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/bgp/engine"
)

// engineArgument makes the test's program a BGP engine.
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
