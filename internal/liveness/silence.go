package liveness

import (
	"math"
	"slices"
	"time"
)

const (
	// repeaters is the number of speakers, the first by name, that repeat what they wrote every repeatInterval while a
	// node is missed, and every recentInterval while that is recent. They also write at once that only the speaker
	// of a node is silent: a speaker that no node hears must soon read that it is not the only one left.
	repeaters      = 3
	repeatInterval = 2 * time.Second
	recentInterval = 250 * time.Millisecond
)

// Silence is what a speaker writes about the speakers that it does not hear.
type Silence struct {
	// Unreachable are nodes whose kernels are silent too, and Quiet nodes of which only the speaker is. Both are
	// in the order of their names, and at most MaxNamed.
	Unreachable, Quiet []SilentNode
	// Complete reports whether all missed nodes have been asked.
	Complete bool
	// CutOff reports whether this node hears half of the speakers or fewer.
	CutOff bool
	// LinkFails reports whether the wire shows that this node's own link does not work.
	LinkFails bool
	// missedCount is the number of missed nodes.
	missedCount int
	// hasRecent reports whether a node fell silent a moment ago without a reason.
	hasRecent bool
}

// SilentNode is a node that is silent since a time.
type SilentNode struct {
	Node  string
	Since time.Time
}

// Interval returns the minimum time between writing what was written and writing s, the longest possible one if
// s does not need to be written. repeats is the result of Repeats.
func (s Silence) Interval(written Silence, repeats bool) time.Duration {
	if !slices.Equal(s.Unreachable, written.Unreachable) {
		return 0
	}

	if !repeats {
		return math.MaxInt64
	}

	switch {
	case s.LinkFails != written.LinkFails || !slices.Equal(s.Quiet, written.Quiet):
		return 0
	case s.hasRecent:
		return recentInterval
	case s.missedCount > 0:
		return repeatInterval
	}

	return math.MaxInt64
}

// Repeats reports whether a speaker is among the speakers that repeat what they write.
func Repeats(node string, alive map[string]bool) bool {
	before := 0
	for other := range alive {
		if other < node {
			before++
		}
	}
	return before < repeaters
}
