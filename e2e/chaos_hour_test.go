//go:build e2e && chaos

package e2e

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab"
)

var (
	chaosSeed = flag.Uint64("seed", 0, "`seed` of the faults of TestChaos; 0 draws one")
	chaosTime = flag.Duration("duration", time.Hour, "how long TestChaos injects faults")
)

// TestChaos injects random faults for an hour.
func TestChaos(t *testing.T) {
	e := setUp(t, providers["lab"], lab.ProxyNFTables)
	seed := *chaosSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	e.chaos(t, seed, *chaosTime)
}
