package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Summary returns figures of a record as text: how many faults of each kind there were, and what listeners and clients
// saw.
func Summary(s Schedule, r Record) string {
	h := newHistory(s, r)
	var b strings.Builder
	fmt.Fprintf(&b, "%d faults in %s:%s\n", len(s.Faults), round(h.all.to), s.kinds())
	for _, t := range h.targets {
		failed, unprovoked := h.failures(t)
		fmt.Fprintf(&b, "%s of %s: %d of %d fetches failed, %d of them without a fault; ",
			t.address, t.service, failed, len(h.fetches[t.address]), unprovoked)
		fmt.Fprintf(&b, "longest pause of answers %s; %d moves\n", round(h.longestPause(t)), h.moves(t))
	}
	for _, by := range slices.Sorted(maps.Keys(h.controls)) {
		deaf := h.deaf(by)
		fmt.Fprintf(&b, "%s was deaf %d times, at most for %s\n", by, len(deaf), round(longest(deaf).length()))
	}
	return b.String()
}

// kinds returns how many faults of each kind there are.
func (s Schedule) kinds() string {
	count := map[string]int{}
	for _, f := range s.Faults {
		kind := string(f.Kind)
		if f.OfLink() {
			kind += " " + f.Link
		}
		count[kind]++
	}
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(count)) {
		fmt.Fprintf(&b, " %d %s,", count[kind], kind)
	}
	return strings.TrimSuffix(b.String(), ",")
}

// failures counts the fetches that failed, and the failed ones that began while all was well.
func (h *history) failures(t target) (failed, unprovoked int) {
	var broken []span
	for _, p := range h.phases {
		broken = append(broken, span{p.begins, p.ready + recovery})
	}
	for _, e := range h.fetches[t.address] {
		if e.Error == "" {
			continue
		}
		failed++
		if !slices.ContainsFunc(broken, func(s span) bool { return s.from <= e.At && e.At <= s.to }) {
			unprovoked++
		}
	}
	return failed, unprovoked
}

// longestPause returns the longest time without an answer.
func (h *history) longestPause(t target) time.Duration {
	return longest(gaps(h.times(t.address), h.all, 0)).length()
}

// moves counts how often another node than the last one began to answer.
func (h *history) moves(t target) int {
	type start struct {
		at   time.Duration
		node string
	}
	var starts []start
	for node, spans := range h.owned(t.address) {
		for _, s := range spans {
			starts = append(starts, start{s.from, node})
		}
	}
	slices.SortFunc(starts, func(a, b start) int { return cmp.Compare(a.at, b.at) })
	n := 0
	for i := range starts {
		if i > 0 && starts[i].node != starts[i-1].node {
			n++
		}
	}
	return n
}
