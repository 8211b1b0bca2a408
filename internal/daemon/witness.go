package daemon

import (
	"os"
	"time"
)

// WitnessInterval returns how often what is remembered is compared with what is computed from nothing: the usual interval, or HOLDFAST_WITNESS of
// the environment, in tests on a cluster.
func WitnessInterval(usual time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv("HOLDFAST_WITNESS")); err == nil && d > 0 {
		return d
	}
	return usual
}
