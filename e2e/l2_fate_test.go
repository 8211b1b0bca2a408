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

// fate is the history of an address during a fault of one node.
type fate struct {
	address netip.Addr
	// own: the faulty node owned the address when the fault began.
	own bool
	// owners in order, with the first one.
	owners []string
	// fetches since the fault began, and those that failed: during the fault, and after it.
	fetches, during, after int
	// why is the error of the last failed fetch.
	why string
	// outage is the time from the beginning of the fault to the start of the last fetch that failed during it.
	outage time.Duration
	// taken is the time from the beginning of the fault to the first claim of another node; negative: there was none.
	taken time.Duration
	// contested is how long, in total, two nodes claimed the address. disputed is the time from the beginning of the fault
	// to the last double claim during it, except for the short overlap of a handover.
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
	periods := whohas.Periods(claims, a)
	for _, mac := range whohas.Owners(periods) {
		if worker, known := s.nodes[mac]; known {
			mac = worker
		}
		f.owners = append(f.owners, mac)
	}
	for _, span := range whohas.Contested(periods) {
		f.contested += span.To.Sub(span.From)
		if span.To.Sub(span.From) > handover && span.From.Before(mended) && span.To.After(hit) {
			f.disputed = span.To.Sub(hit)
		}
	}
	return f
}

func (f fate) String() string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	add("%s of %s", f.address, strings.Join(f.owners, ", then "))
	if f.own {
		add("which was faulty")
	}
	if f.taken >= 0 {
		add("taken over after %d ms", f.taken.Milliseconds())
	}
	add("%d moves", f.moves())
	if f.contested > 0 {
		add("two owners for %d ms", f.contested.Milliseconds())
	}
	if f.disputed > 0 {
		add("in dispute until %d ms after the beginning", f.disputed.Milliseconds())
	}
	add("%d of %d fetches failed", f.during+f.after, f.fetches)
	if f.during > 0 {
		add("the last %d ms after the beginning", f.outage.Milliseconds())
	}
	if f.after > 0 {
		add("%d after the end", f.after)
	}
	if f.why != "" {
		add("by %q", f.why)
	}
	return strings.Join(parts, ", ")
}

func (f fate) moves() int { return len(f.owners) - 1 }

// Promises for addresses during a fault of one node.
const (
	// handover is how long two nodes may claim an address during a handover.
	handover = 200 * time.Millisecond
	// takeover is the limit for other nodes to serve what the faulty node cannot, and for double claims.
	takeover = 2 * time.Second
	// settled is the limit from the end of a partition until every address has one owner.
	settled = 15 * time.Second
	// movesOfOne are the moves of an address of the faulty node: away, and back.
	movesOfOne = 2
)

// judge checks a fate against the promises.
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
