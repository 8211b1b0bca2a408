package chaos

import (
	"cmp"
	"slices"
	"time"
)

// span is a time span from the start of the run.
type span struct{ from, to time.Duration }

func (s span) length() time.Duration { return s.to - s.from }

// merge returns the union of spans, sorted and apart.
func merge(spans []span) []span {
	sorted := slices.SortedFunc(slices.Values(spans), func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var out []span
	for _, s := range sorted {
		last := len(out) - 1
		if last >= 0 && s.from <= out[last].to {
			out[last].to = max(out[last].to, s.to)
			continue
		}
		out = append(out, s)
	}
	return out
}

// intersect returns what two lists of merged spans have in common.
func intersect(a, b []span) []span {
	var out []span
	for len(a) > 0 && len(b) > 0 {
		both := span{max(a[0].from, b[0].from), min(a[0].to, b[0].to)}
		if both.from < both.to {
			out = append(out, both)
		}
		if a[0].to < b[0].to {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return out
}

// subtract returns the parts of merged spans that are outside of others.
func subtract(a, b []span) []span {
	var out []span
	for _, s := range a {
		for _, cut := range b {
			if cut.to <= s.from || cut.from >= s.to {
				continue
			}
			if cut.from > s.from {
				out = append(out, span{s.from, cut.from})
			}
			s.from = cut.to
		}
		if s.from < s.to {
			out = append(out, s)
		}
	}
	return out
}

// longest returns the longest span.
func longest(spans []span) span {
	var out span
	for _, s := range spans {
		if s.length() > out.length() {
			out = s
		}
	}
	return out
}

// gaps returns the pauses between sorted times that are longer than a limit, from the start to the end of a span.
func gaps(times []time.Duration, within span, limit time.Duration) []span {
	var out []span
	last := within.from
	for _, t := range append(slices.Clone(times), within.to) {
		if t-last > limit {
			out = append(out, span{last, t})
		}
		last = max(last, t)
	}
	return out
}
