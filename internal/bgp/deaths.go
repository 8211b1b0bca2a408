package bgp

import (
	"fmt"
	"time"
)

// deaths decide when an engine that died is started again.
type deaths struct {
	at []time.Time
	// failed counts starts that failed.
	failed int
	until  time.Time
	// tooOften: until then the peer is in quarantine.
	tooOften bool
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
	d.at, d.failed, d.until, d.tooOften = recent, 0, now, false
	switch n := len(recent); {
	case n >= deathLimit:
		d.at, d.until, d.tooOften = nil, now.Add(quarantineTime), true
	case n > 1:
		d.until = now.Add(time.Second)
	}
}

// unstarted: that is not the peer's fault.
func (d *deaths) unstarted(now time.Time) {
	d.failed++
	d.until, d.tooOften = now.Add(min(time.Second<<min(d.failed-1, 5), maxPause)), false
}

// quarantined reports whether the peer has no engine at a time, because it died too often.
func (d *deaths) quarantined(now time.Time) bool { return d.tooOften && now.Before(d.until) }

// sentence says what happened to an engine.
func (d *deaths) sentence(err error) string {
	if !d.tooOften {
		return err.Error()
	}
	return fmt.Sprintf("the BGP engine died %d times with this peer within %v, at last: %v; it is tried again after %v, or when the BGPPeer changes",
		deathLimit, minutes(deathWindow), err, minutes(quarantineTime))
}

func minutes(d time.Duration) string { return fmt.Sprintf("%d minutes", int(d.Minutes())) }
