package whohas

import (
	"net/netip"
	"slices"
	"time"
)

// Period is a time in which one MAC claimed an address, without a long silence.
type Period struct {
	MAC string
	Span
}

// Span is a time.
type Span struct{ From, To time.Time }

// silence ends a period: who loses nine questions of ten is still heard more often, if
// asked every 20 ms.
const silence = time.Second

// Periods returns who claimed an address, and when, by their beginnings.
func Periods(claims []Claim, address netip.Addr) []Period {
	var out []Period
	last := map[string]int{} // index in out, by MAC
	for _, c := range claims {
		if c.Address != address {
			continue
		}
		if i, seen := last[c.MAC]; seen && c.At.Sub(out[i].To) <= silence {
			out[i].To = c.At
			continue
		}
		last[c.MAC] = len(out)
		out = append(out, Period{c.MAC, Span{c.At, c.At}})
	}
	return out
}

// Owners returns who had an address one after the other: he who began to claim it last, and when
// he stopped, whoever goes on. Each step is a move.
func Owners(periods []Period) []string {
	type change struct {
		at    time.Time
		owner string
	}
	var changes []change
	for _, r := range periods {
		changes = append(changes, change{r.From, r.MAC})
		for _, other := range periods {
			if other.MAC != r.MAC && other.From.Before(r.To) && other.To.After(r.To) {
				changes = append(changes, change{r.To, other.MAC})
			}
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return a.at.Compare(b.at) })
	var out []string
	for _, c := range changes {
		if len(out) == 0 || out[len(out)-1] != c.owner {
			out = append(out, c.owner)
		}
	}
	return out
}

// Contested returns when more than one had an address. One frame counts as a window: it is
// enough to turn a neighbour's mind.
func Contested(periods []Period) []Span {
	var all []Span
	for i, r := range periods {
		for _, other := range periods[i+1:] {
			both := Span{latest(r.From, other.From), earliest(r.To, other.To)}
			if other.MAC != r.MAC && !both.To.Before(both.From) {
				both.To = latest(both.To, both.From.Add(window))
				all = append(all, both)
			}
		}
	}
	slices.SortFunc(all, func(a, b Span) int { return a.From.Compare(b.From) })
	var out []Span
	for _, s := range all {
		if last := len(out) - 1; last >= 0 && !s.From.After(out[last].To) {
			out[last].To = latest(out[last].To, s.To)
			continue
		}
		out = append(out, s)
	}
	return out
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
