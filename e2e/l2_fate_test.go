//go:build e2e

package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/whohas"
)

// fate is what became of an address while a node was in trouble.
type fate struct {
	address netip.Addr
	// own: it was of the node in trouble.
	own bool
	// owners one after the other, who had it at first included.
	owners []string
	// fetches since the trouble began, and those that failed: before it ended, and after.
	fetches, during, after int
	// why the last one failed.
	why string
	// outage is how long after the trouble began the last fetch was started that failed during it.
	outage time.Duration
	// taken is how long after the trouble began another than before claimed it first; negative: nobody did.
	taken time.Duration
	// contested is for how long in all two had it, disputed how long after the trouble began they still
	// did, before it ended; in a handover they do for a moment, which is no dispute.
	contested, disputed time.Duration
}

func (s *spread) fate(a netip.Addr, owner string, fetches []probe.Result, claims []whohas.Claim, hit, mended time.Time) fate {
	f := fate{address: a, own: owner == s.hit, taken: -1}
	for _, r := range fetches {
		if r.Start.Before(hit) {
			continue
		}
		f.fetches++
		switch {
		case r.OK:
			continue
		case r.Start.Before(mended):
			f.during++
			f.outage = max(f.outage, r.Start.Sub(hit))
		default:
			f.after++
		}
		f.why = r.Error
	}
	if at, moved := whohas.First(claims, hit)[a]; moved {
		f.taken = at.Sub(hit)
	}
	reigns := whohas.Reigns(claims, a)
	for _, mac := range whohas.Owners(reigns) {
		if worker, known := s.nodes[mac]; known {
			mac = worker
		}
		f.owners = append(f.owners, mac)
	}
	for _, span := range whohas.Contested(reigns) {
		f.contested += span.To.Sub(span.From)
		if span.To.Sub(span.From) > handover && span.From.Before(mended) && span.To.After(hit) {
			f.disputed = span.To.Sub(hit)
		}
	}
	return f
}

func (f fate) String() string {
	var words []string
	say := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	say("%s of %s", f.address, strings.Join(f.owners, ", then "))
	if f.own {
		say("which was in trouble")
	}
	if f.taken >= 0 {
		say("taken over after %d ms", f.taken.Milliseconds())
	}
	say("%d moves", f.moves())
	if f.contested > 0 {
		say("two owners for %d ms", f.contested.Milliseconds())
	}
	if f.disputed > 0 {
		say("in dispute until %d ms after the beginning", f.disputed.Milliseconds())
	}
	say("%d of %d fetches failed", f.during+f.after, f.fetches)
	if f.during > 0 {
		say("the last %d ms after the beginning", f.outage.Milliseconds())
	}
	if f.after > 0 {
		say("%d after the end", f.after)
	}
	if f.why != "" {
		say("by %q", f.why)
	}
	return strings.Join(words, ", ")
}

func (f fate) moves() int { return len(f.owners) - 1 }

// What is promised of addresses while a node is in trouble.
const (
	// handover is for how long two have an address when one takes over what another gives up.
	handover = 200 * time.Millisecond
	// takeover is how soon others serve what a node cannot serve, and for how long two may do so.
	takeover = 2 * time.Second
	// settled is how soon all is as before when the trouble ends.
	settled = 15 * time.Second
	// movesOfOne is for an address of the node in trouble: away, and back.
	movesOfOne = 2
)

// judge checks a fate.
func (f fate) judge(t *testing.T, tr trouble) {
	t.Helper()
	failed := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s: "+format, append([]any{f.address}, args...)...)
	}
	switch moves := f.moves(); {
	case tr.stays && moves > 0:
		failed("moved %d times, where nothing had to", moves)
	case !f.own && moves > 0:
		failed("moved %d times, though its owner is well", moves)
	case moves > movesOfOne:
		failed("moved %d times, want %d at most", moves, movesOfOne)
	}
	if first, last := f.owners[0], f.owners[len(f.owners)-1]; last != first {
		failed("is %s's in the end, and was %s's", last, first)
	}
	if n := f.during + f.after; (!f.own || tr.stays) && n > 0 {
		failed("%d fetches failed, though its owner serves", n)
	}
	if f.own && tr.leaves && f.taken < 0 {
		failed("no other node took over")
	}
	if f.own && tr.leaves && f.outage > takeover {
		failed("fetches failed for %s, want no more than %s", f.outage, takeover)
	}
	if f.contested > takeover {
		failed("had two owners for %s, want no more than %s", f.contested, takeover)
	}
	if tr.united && f.disputed > takeover {
		failed("had two owners until %s after the trouble began, want no later than %s", f.disputed, takeover)
	}
}
