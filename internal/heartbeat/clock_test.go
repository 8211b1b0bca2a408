package heartbeat

import (
	"fmt"
	"hash/fnv"
	"slices"
	"testing"
	"time"
)

// history is all that nodes with such clocks send each other, in short, while one
// of them dies, returns, loses its speaker, is frozen and is cut off; and what
// became of it.
func history(t *testing.T, skews ...time.Duration) (sent uint64, seen []string) {
	t.Helper()
	w := newWorldOf(13, 4, Timers{}, skews...)
	sum := fnv.New64a()
	w.tap = func(from, to *node, p packet) { fmt.Fprintln(sum, w.now, from.name, to.name, p) }
	first := w.nodes[0]
	for _, event := range []struct {
		name string
		do   func()
		want Status
	}{
		{"in peace", func() {}, Alive},
		{"off", first.stop, Dead},
		{"on", first.start, HoldDown},
		{"later", func() { w.after(15 * time.Second) }, Alive},
		{"killed", first.kill, SpeakerDown},
		{"started", first.start, Alive},
		{"frozen", func() { first.pausedUntil = w.now + 2*time.Second }, Dead},
		{"thawed", func() { w.until(first.pausedUntil) }, HoldDown},
		{"cut off", func() { w.cut = func(from, to *node) bool { return (from == first) != (to == first) } }, Dead},
		{"healed", func() { w.cut = nil }, HoldDown},
	} {
		event.do()
		took := w.must(t, 5*time.Second, w.all(first, event.want), event.name)
		seen = append(seen, fmt.Sprintf("%s: %v after %v", event.name, event.want, took))
		w.after(2 * time.Second)
	}
	return sum.Sum64(), seen
}

// TestClocksDiffer: what a node says means the same whatever its clock shows, so
// that nodes hours and years apart send each other the same packets as nodes whose
// clocks agree, and come to the same verdicts at the same moments.
//
// Trap: a lease valid by another node's clock, and a loser that steps down late (PureLB).
func TestClocksDiffer(t *testing.T) {
	sent, seen := history(t)
	for _, skews := range [][]time.Duration{
		{time.Hour}, {0, time.Minute, time.Hour}, {5 * 365 * 24 * time.Hour, 0, 60 * time.Second, 300 * ms},
	} {
		gotSent, gotSeen := history(t, skews...)
		if !slices.Equal(gotSeen, seen) {
			t.Errorf("clocks ahead by %v: %q\nwant %q", skews, gotSeen, seen)
		} else if gotSent != sent {
			t.Errorf("clocks ahead by %v: other packets are sent", skews)
		}
	}
}
