package detect

import (
	"cmp"
	"time"
)

// Timers of a Detector. A field that is zero means its default.
type Timers struct {
	// Interval between two heartbeats. The default is 25 ms.
	Interval time.Duration
	// Multiplier is how many intervals of silence make a suspect, as Detect Mult of RFC 5880. The default is 4.
	Multiplier int
}

// SpeakerDownTime is how long a node may be without a speaker, or with a speaker that hangs, before its addresses
// move. A container that is started again is back in a second or two.
const SpeakerDownTime = 10 * time.Second

const (
	// maxWatchers is how many other nodes get the heartbeats of each node.
	maxWatchers = 6
	// maxAdaptedHold is the longest time that a node asks for because its own heartbeats are late.
	maxAdaptedHold = 350 * time.Millisecond
	// ordinaryFactor is how much longer a node without real-time priority may be silent. On two cores with seven
	// runnable threads the longest gap of a 45 ms timer was 287 ms without that priority, and 49 ms with it.
	ordinaryFactor = 4

	// holdDownTime is how long a node that was declared dead takes nothing back, after its first two returns. Each
	// further return that counts doubles it, up to maxHoldDown.
	holdDownTime = 10 * time.Second
	maxHoldDown  = 5 * time.Minute
	// forgiveTime is how long a node lives until its deaths are forgotten.
	forgiveTime = 10 * time.Minute
)

// WithDefaults returns the timers with defaults for zero fields.
func (t Timers) WithDefaults() Timers {
	return Timers{cmp.Or(t.Interval, 25*time.Millisecond), cmp.Or(t.Multiplier, 4)}
}

// Hold returns how long others may hear nothing of a node with these timers before they suspect it.
func (t Timers) Hold(realtime bool) time.Duration {
	hold := t.Interval * time.Duration(t.Multiplier)
	if !realtime {
		hold *= ordinaryFactor
	}

	return min(max(hold, minHold), maxHold)
}
