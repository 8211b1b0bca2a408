package liveness

import (
	"math"
	"slices"
	"time"
)

const (
	// repeaters are so many speakers, the first by name, that repeat what they wrote every
	// repeatInterval while a node is missed, and every newsInterval while that is news. They
	// also write at once that a speaker alone is silent: who is not
	// heard any more must read soon that he is not the only one left.
	repeaters      = 3
	repeatInterval = 2 * time.Second
	recentInterval   = 250 * time.Millisecond
)

// Silence is what a speaker writes of those that it does not hear.
type Silence struct {
	// Unreachable are nodes that are silent altogether; Quiet those that only the speaker is silent on. Both are
	// in the order of their names, and at most MostNamed.
	Unreachable, Quiet []SilentNode
	// Complete: all that are missed have been asked. CutOff: this node hears half of the speakers or fewer.
	Complete, CutOff bool
	// missed is how many there are; news: one fell silent just now without a reason.
	missed int
	recent   bool
}

// SilentNode is a node that is silent since a time.
type SilentNode struct {
	Node  string
	Since time.Time
}

// Interval returns the least time between writing what was written and writing s, the longest there is where
// silence asks for nothing.
func (s Silence) Interval(written Silence, repeats bool) time.Duration {
	switch {
	case !slices.Equal(s.Unreachable, written.Unreachable), repeats && !slices.Equal(s.Quiet, written.Quiet):
		return 0
	case repeats && s.recent:
		return recentInterval
	case repeats && s.missed > 0:
		return repeatInterval
	}
	return math.MaxInt64
}

// Repeats reports whether a speaker is one of those that repeat what they write.
func Repeats(node string, alive map[string]bool) bool {
	before := 0
	for other := range alive {
		if other < node {
			before++
		}
	}
	return before < repeaters
}
