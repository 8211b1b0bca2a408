package liveness

import (
	"math"
	"slices"
	"time"
)

const (
	// repeaters are so many speakers, the first by name, that repeat what they wrote every repeatInterval while a
	// node is missed, and every recentInterval while that is recent. They also write at once that only the speaker
	// of a node is silent: a speaker that nobody hears must soon read that it is not the only one left.
	repeaters      = 3
	repeatInterval = 2 * time.Second
	recentInterval = 250 * time.Millisecond
)

// Silence is what a speaker writes about those that it does not hear.
type Silence struct {
	// Unreachable are nodes whose kernels are silent too; of Quiet ones only the speaker is. Both are
	// in the order of their names, and at most MostNamed.
	Unreachable, Quiet []SilentNode
	// Complete: all that are missed have been asked. CutOff: this node hears half of the speakers or fewer.
	Complete, CutOff bool
	// LinkFails: the wire shows that this node's own link does not work.
	LinkFails bool
	// missed is how many there are; recent: one fell silent just now without a reason.
	missed int
	recent bool
}

// SilentNode is a node that is silent since a time.
type SilentNode struct {
	Node  string
	Since time.Time
}

// Interval returns the least time between writing what was written and writing s, the longest possible one if
// s does not need to be written.
func (s Silence) Interval(written Silence, repeats bool) time.Duration {
	switch {
	case !slices.Equal(s.Unreachable, written.Unreachable), repeats &&
		s.LinkFails != written.LinkFails, repeats &&
		!slices.Equal(s.Quiet, written.Quiet):
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
