package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Schedule is the faults of one run, sorted by their starts. The first link carries the nodes' own addresses.
type Schedule struct {
	Seed     uint64        `json:"seed"`
	Duration time.Duration `json:"duration"`
	Nodes    []string      `json:"nodes"`
	Links    []string      `json:"links"`
	Faults   []Fault       `json:"faults"`
}

// A fault begins some time after the start of the one before.
const (
	minStep, maxStep = 8 * time.Second, 20 * time.Second
	// lead is the time before the first fault.
	lead = 5 * time.Second
)

// Faults of links end by a repair of all links, so that they are apart. Without the API server for longer in sum
// Kubernetes would take nodes for lost, and their endpoints with them.
const (
	apartOnLinks = 3 * time.Second
	apartOfAPI   = 45 * time.Second
	// apartOnNode is the time that a node works between two faults; after a boot or a restart it is apartOnStart.
	apartOnNode  = 20 * time.Second
	apartOnStart = 75 * time.Second
)

// deck returns one fault of each variety, with its longest duration.
func deck(links []string) []Fault {
	cards := []Fault{
		{Kind: Power, Duration: 20 * time.Second}, {Kind: Power, Duration: 20 * time.Second},
		{Kind: Freeze, Duration: 20 * time.Second}, {Kind: Freeze, Duration: 20 * time.Second},
		{Kind: Kill}, {Kind: Replace},
		{Kind: API, Duration: 15 * time.Second}, {Kind: API, Duration: 15 * time.Second},
	}
	for i, l := range links {
		// Of an owner that is heard less often a listener cannot tell whether there is one.
		heavy := 75
		if i == 0 {
			heavy = 90
		}
		cards = append(cards,
			Fault{Kind: Cut, Link: l, Duration: 20 * time.Second},
			Fault{Kind: Flap, Link: l, Duration: 20 * time.Second},
			Fault{Kind: Loss, Link: l, In: 100, Out: 100, Duration: 20 * time.Second},
			Fault{Kind: Loss, Link: l, In: 100, Duration: 20 * time.Second},
			Fault{Kind: Loss, Link: l, Out: 100, Duration: 20 * time.Second},
			Fault{Kind: Loss, Link: l, In: heavy, Duration: 20 * time.Second},
			Fault{Kind: Loss, Link: l, Out: heavy, Duration: 20 * time.Second},
			Fault{Kind: Loss, Link: l, In: 50, Out: 50, Duration: 20 * time.Second},
			Fault{Kind: Isolate, Link: l, Duration: 15 * time.Second},
		)
	}
	return cards
}

// minDuration is the shortest duration of a fault that does not end by itself.
const minDuration = 3 * time.Second

// NewSchedule returns the faults of a run. The same arguments give the same faults. All varieties come before one
// comes again.
func NewSchedule(seed uint64, duration time.Duration, nodes, links []string) Schedule {
	s := Schedule{Seed: seed, Duration: duration, Nodes: nodes, Links: links}
	random := rand.New(rand.NewPCG(seed, 0))
	var cards []Fault
	for at := lead; at < duration; at += between(random, minStep, maxStep) {
		if len(cards) == 0 {
			cards = deck(links)
			random.Shuffle(len(cards), func(i, j int) { cards[i], cards[j] = cards[j], cards[i] })
		}
		for i := range cards {
			f, ok := s.place(random, cards[i], at)
			if ok {
				s.Faults = append(s.Faults, f)
				cards = append(cards[:i], cards[i+1:]...)
				break
			}
		}
	}
	return s
}

// place returns the fault with a start, a duration and a node, if the schedule has room for it.
func (s *Schedule) place(random *rand.Rand, f Fault, at time.Duration) (Fault, bool) {
	f.Start = at
	if f.Duration > 0 {
		f.Duration = between(random, minDuration, f.Duration)
	}
	if f.Kind == Flap {
		f.Duration = max(FlapEvery, f.Duration.Truncate(FlapEvery))
	}
	if f.end() > s.Duration {
		return f, false
	}
	if f.Kind != API && f.Kind != Isolate {
		var free []string
		for _, n := range s.Nodes {
			f.Node = n
			if s.fits(f) {
				free = append(free, n)
			}
		}
		if len(free) == 0 {
			return f, false
		}
		f.Node = free[random.IntN(len(free))]
	}
	return f, s.fits(f)
}

// fits reports whether a fault is far enough from each earlier one.
func (s *Schedule) fits(f Fault) bool {
	for _, earlier := range s.Faults {
		if f.Start < earlier.end()+apart(earlier, f) {
			return false
		}
	}
	return true
}

// apart returns the minimum time from the end of a fault to the start of a later one, negative if they may overlap.
func apart(f, later Fault) time.Duration {
	const overlap = -time.Hour
	switch {
	case f.Node != "" && f.Node == later.Node && f.restarts():
		return apartOnStart
	case f.Node != "" && f.Node == later.Node:
		return apartOnNode
	case f.OfLink() && later.OfLink():
		return apartOnLinks
	case f.Kind == API && later.Kind == API:
		return apartOfAPI
	case f.Kind == API && (later.Kind == Kill || later.Kind == Replace):
		return apartOnLinks // both begin by a look at the API server
	case f.Node != "" && later.Node != "" && !f.OfLink() && !later.OfLink():
		return 0 // two nodes of three
	}
	return overlap
}

// restarts reports whether programs of the node start again at the end of the fault.
func (f Fault) restarts() bool { return f.Kind == Power || f.Kind == Kill || f.Kind == Replace }

func (f Fault) end() time.Duration { return f.Start + f.Duration }

// between returns a random duration of whole 100 ms.
func between(random *rand.Rand, low, high time.Duration) time.Duration {
	const unit = 100 * time.Millisecond
	return low + unit*time.Duration(random.Int64N(int64((high-low)/unit)+1))
}

// String returns the schedule as text, a line for each fault.
func (s Schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %s, nodes %v, links %v\n", s.Seed, s.Duration, s.Nodes, s.Links)
	for i, f := range s.Faults {
		fmt.Fprintf(&b, "#%d %s to %s: %s\n", i, f.Start, f.end(), f)
	}
	return b.String()
}
