package bgp

import (
	"fmt"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
)

// deaths decide when an engine that died is started again.
type deaths struct {
	// of are the settings that it died with: others are another matter.
	of wire.Settings
	at []time.Time
	// failed counts starts that failed.
	failed int
	until  time.Time
	// quarantined: it died too often.
	quarantined bool
}

const (
	// As many deaths within this time put a peer in quarantine for so long.
	deathLimit     = 3
	deathWindow    = 10 * time.Minute
	quarantineTime = 15 * time.Minute
	// maxPause bounds the pause before a start that failed is tried again.
	maxPause = 30 * time.Second
)

// died: the first time it is started again at once.
func (d *deaths) died(now time.Time) {
	recent := []time.Time{now}
	for _, at := range d.at {
		if now.Sub(at) < deathWindow {
			recent = append(recent, at)
		}
	}
	d.at, d.failed, d.until, d.quarantined = recent, 0, now, false
	switch n := len(recent); {
	case n >= deathLimit:
		d.at, d.until, d.quarantined = nil, now.Add(quarantineTime), true
	case n > 1:
		d.until = now.Add(time.Second)
	}
}

// unstarted: that is not the peer's fault.
func (d *deaths) unstarted(now time.Time) {
	d.failed++
	d.until, d.quarantined = now.Add(min(time.Second<<min(d.failed-1, 5), maxPause)), false
}

// sentence says what happened to an engine.
func (d *deaths) sentence(err error) string {
	if !d.quarantined {
		return err.Error()
	}
	return fmt.Sprintf("the BGP engine died %d times with this peer within %v, at last: %v; it is tried again after %v, or when the BGPPeer changes",
		deathLimit, minutes(deathWindow), err, minutes(quarantineTime))
}

func minutes(d time.Duration) string { return fmt.Sprintf("%d minutes", int(d.Minutes())) }
