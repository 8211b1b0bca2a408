package probe

import (
	"slices"
	"time"
)

// Outage is a time span without an answer: from the start of the last good probe
// before it to the start of the first good probe after it.
type Outage struct {
	From, To time.Time
	// Failed is how many probes failed in between.
	Failed int
	// Over is false if no good probe followed; To is then the start of the last probe.
	Over bool
}

// Length of the outage, as a client sees it.
func (o Outage) Length() time.Duration { return o.To.Sub(o.From) }

// Outages returns the outages in order. Each contains a failed probe: a gap alone is
// no outage, since on a busy machine good probes may start late.
func Outages(results []Result) []Outage {
	sorted := slices.Clone(results)
	slices.SortFunc(sorted, func(a, b Result) int { return a.Start.Compare(b.Start) })
	var out []Outage
	var last time.Time // start of the last good probe
	var open *Outage
	for _, r := range sorted {
		switch {
		case !r.OK && open == nil:
			from := last
			if last.IsZero() {
				from = sorted[0].Start
			}
			open = &Outage{From: from, To: r.Start, Failed: 1}
		case !r.OK:
			open.Failed++
			open.To = r.Start
		case open != nil:
			open.To, open.Over = r.Start, true
			out = append(out, *open)
			open = nil
		}
		if r.OK {
			last = r.Start
		}
	}
	if open != nil {
		out = append(out, *open)
	}
	return out
}

// Longest returns the longest of the outages, and false when there is none.
func Longest(outages []Outage) (Outage, bool) {
	if len(outages) == 0 {
		return Outage{}, false
	}
	return slices.MaxFunc(outages, func(a, b Outage) int {
		return int(a.Length() - b.Length())
	}), true
}
