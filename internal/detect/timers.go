package detect

import (
	"cmp"
	"time"
)

// Timers of a Heartbeat; a zero field means its default.
type Timers struct {
	// Interval between heartbeats. Default 25 ms.
	Interval time.Duration
	// Multiplier is how many intervals of silence make a suspect, as RFC 5880's Detect Mult. Default 4.
	Multiplier int
}

const (
	// holdDownTime is how long a node that was declared dead takes nothing back after its first
	// two returns; it doubles with each further return that counts, up to maxHoldDown.
	holdDownTime = 10 * time.Second
	maxHoldDown  = 5 * time.Minute
	// forgiveTime is how long a node lives until its deaths are forgotten.
	forgiveTime = 10 * time.Minute
	// SpeakerDownTime is how long a node may be without a speaker, or with a speaker that hangs, before its addresses
	// move: a container that is started again is back in a second or two.
	SpeakerDownTime = 10 * time.Second
	// Watchers is how many others get the heartbeats of each node.
	Watchers = 6
	// maxAdaptedHold is the most time that a node asks for because its own heartbeats are late.
	maxAdaptedHold = 350 * time.Millisecond
	// patienceFactor is how much longer a node without real-time priority may be silent. On two cores
	// with seven runnable threads the longest gap of a 45 ms timer was 287 ms, and 49 ms with that priority.
	patienceFactor = 4
)

// WithDefaults fills in what is not set.
func (t Timers) WithDefaults() Timers {
	return Timers{cmp.Or(t.Interval, 25*time.Millisecond), cmp.Or(t.Multiplier, 4)}
}

// Hold is how long others may hear nothing of this node.
func (t Timers) Hold(realtime bool) time.Duration {
	hold := t.Interval * time.Duration(t.Multiplier)
	if !realtime {
		hold *= patienceFactor
	}
	return min(max(hold, shortestHold), longestHold)
}
