package whohas

import (
	"net/netip"
	"slices"
	"time"
)

// Period is a time span in which one MAC claimed an address without a long pause.
type Period struct {
	MAC string
	Span
}

// Span is a time span.
type Span struct{ From, To time.Time }

// silence is the pause that ends a period. With a request each 20 ms even a node that loses nine of
// ten requests answers more often.
const silence = time.Second

// Periods returns the periods of all MACs that claimed an address, sorted by their beginnings.
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

// Owners returns the successive owners of an address. A MAC that begins to claim it is the owner; when the
// owner stops, another MAC that still claims it is. Each step is a move.
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

// Contested returns the time spans in which more than one MAC claimed an address. One frame counts as a window:
// it is enough to change a neighbour's cache.
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
