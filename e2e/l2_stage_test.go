//go:build e2e

package e2e

import (
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"github.com/holdfast-lb/holdfast/e2e/whohas"
)

// Ports of the speakers: gossip, and heartbeats.
const (
	membersPort   = 7947
	heartbeatPort = 7948
)

// stage is a testbed.Stage with the test's environment.
type stage struct {
	*env
	*testbed.Stage
}

func newStage(t *testing.T, e *env) *stage {
	t.Helper()
	s, err := e.Stage(t.Context(), e.app.Namespace)
	must(t, err)
	undo(t, s.Clear)
	e.served(t, testbed.Client, s.Addresses)
	return &stage{e, s}
}

// watch probes both addresses over TCP and UDP.
func (s *stage) watch(t *testing.T) *testbed.Watch {
	t.Helper()
	tcp, err := s.env.Watch(t.Context(), testbed.Client, probe.TCP, s.Addresses, "-every", pace.String())
	must(t, err)
	udp, err := s.env.Watch(t.Context(), testbed.Client, probe.UDP, s.Addresses, "-every", pace.String())
	must(t, err)
	return tcp.Join(udp)
}

// held is the number of connections to each address that planned events must not break.
const held = 100

// keep holds connections open during a planned event. The function that it returns sends one more request
// on each. All must survive; after a move only the whole matrix requires that, since it has the machine to itself.
func (s *stage) keep(t *testing.T, f fault) (survived func()) {
	if !f.isPlanned {
		return func() {}
	}
	c, err := s.env.Keep(t.Context(), testbed.Client, held, s.Addresses...)
	must(t, err)
	return func() {
		t.Helper()
		seen, err := c.Stop()
		must(t, err)
		t.Logf("matrix: %s: %s", f.name, seen)
		if (f.mustStay || *matrix) && seen.Lost() > 0 {
			t.Errorf("%d connections broke, though the address stayed where it was", seen.Lost())
		}
	}
}

// figure is the client's view of a time span.
type figure struct {
	failed int
	gap    time.Duration
	parts  []string
}

// between returns the figure of the probes that were started in a time span.
func between(seen []testbed.Seen, from, to time.Time) figure {
	var f figure
	for _, s := range seen {
		part := testbed.Seen{Name: s.Name}
		for _, r := range s.Results {
			if !r.Start.Before(from) && r.Start.Before(to) {
				part.Results = append(part.Results, r)
			}
		}
		f.failed += part.Failed()
		f.gap = max(f.gap, part.Gap())
		f.parts = append(f.parts,
			fmt.Sprintf("%s %d ms (%d of %d failed)", s.Name, part.Gap().Milliseconds(), part.Failed(), len(part.Results)))
	}
	return f
}

func (f figure) String() string { return strings.Join(f.parts, ", ") }

// shared returns how long two nodes answered for the same address.
func (s *stage) shared(claims []whohas.Claim) time.Duration {
	var longest time.Duration
	for _, a := range s.Addresses {
		longest = max(longest, whohas.Overlap(claims, a))
	}
	return longest
}

// settledAfter returns the time from since to the last claim by a node that is not the
// owner at the end.
func (s *stage) settledAfter(claims []whohas.Claim, since time.Time) time.Duration {
	var longest time.Duration
	for _, a := range s.Addresses {
		final := ""
		for _, c := range claims {
			if c.Address == a {
				final = c.MAC
			}
		}
		for _, c := range claims {
			if c.Address == a && c.MAC != final && c.At.After(since) {
				longest = max(longest, c.At.Sub(since))
			}
		}
	}
	return longest
}

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
	// outage is the time from the start of the first fetch that failed during the fault to the start of the last one: it
	// takes a busy machine up to a second to inject a fault.
	outage time.Duration
	// taken is the time from the beginning of the fault to the first claim of another node; negative: there was none.
	taken time.Duration
	// contested is how long, in total, two nodes claimed the address. disputed is the time from the beginning of the fault
	// to the last double claim during it, except for the short overlap of a handover.
	contested, disputed time.Duration
}

func (s *spread) fate(
	a netip.Addr,
	owner string,
	fetches []probe.Result,
	claims []whohas.Claim,
	hit, repairedAt time.Time,
) fate {
	f := fate{address: a, own: owner == s.hit, taken: -1}
	var lost []time.Time
	for _, r := range fetches {
		if r.Start.Before(hit) {
			continue
		}
		f.fetches++
		switch {
		case r.OK:
			continue
		case r.Start.Before(repairedAt):
			f.during++
			lost = append(lost, r.Start)
		default:
			f.after++
		}
		f.why = r.Error
	}
	if len(lost) > 0 {
		f.outage = slices.MaxFunc(lost, time.Time.Compare).Sub(slices.MinFunc(lost, time.Time.Compare))
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
		if span.To.Sub(span.From) > handover && span.From.Before(repairedAt) && span.To.After(hit) {
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
		add("for %d ms", f.outage.Milliseconds())
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
func (f fate) judge(t *testing.T, tr partialFault) {
	t.Helper()
	failed := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s: "+format, append([]any{f.address}, args...)...)
	}
	switch moves := f.moves(); {
	case tr.mustStay && moves > 0:
		failed("moved %d times, where nothing had to", moves)
	case !f.own && moves > 0:
		failed("moved %d times, though its owner is well", moves)
	case moves > movesOfOne:
		failed("moved %d times, want %d at most", moves, movesOfOne)
	}
	if first, last := f.owners[0], f.owners[len(f.owners)-1]; last != first {
		failed("is %s's in the end, and was %s's", last, first)
	}
	if n := f.during + f.after; (!f.own || tr.mustStay) && n > 0 {
		failed("%d fetches failed, though its owner serves", n)
	}
	if f.own && tr.mustLeave && f.taken < 0 {
		failed("no other node took over")
	}
	if f.own && tr.mustLeave && f.outage > takeover {
		failed("fetches failed for %s, want no more than %s", f.outage, takeover)
	}
	if f.contested > takeover {
		failed("had two owners for %s, want no more than %s", f.contested, takeover)
	}
	if tr.mustUnite && f.disputed > takeover {
		failed("had two owners until %s after the trouble began, want no later than %s", f.disputed, takeover)
	}
}

var (
	lossTime = flag.Duration("loss-time", 30*time.Second, "how long each loss lasts that -matrix shows")
	long     = flag.Bool("long", false, "show losses that last ten minutes, too")
)

const (
	shortLoss = 12 * time.Second
	longLoss  = 10 * time.Minute
)

// serving is the percentage of lost frames up to which a node can still serve clients.
const serving = 80

// losses are the rows with frame loss at one node.
func losses() []partialFault {
	both := func(of int) wire.Loss { return wire.Loss{In: of, Out: of} }
	in := func(of int) wire.Loss { return wire.Loss{In: of} }
	out := func(of int) wire.Loss { return wire.Loss{Out: of} }
	var rows []partialFault
	for _, way := range []struct {
		name   string
		loss   func(int) wire.Loss
		always int
	}{{"inbound", in, 90}, {"outbound", out, 100}, {"both", both, 0}} {
		for _, of := range []int{50, 80, 90, 99, 100} {
			rows = append(rows, partialFault{
				name: fmt.Sprintf("%s %d", way.name, of), hit: lose(way.loss(of)), mustLeave: of > serving,
				alwaysRuns: of == way.always,
			})
		}
	}
	bursts := both(100)
	bursts.Burst, bursts.Pause = 500*time.Millisecond, 500*time.Millisecond
	return append(rows,
		partialFault{name: "bursts", hit: lose(bursts)},
		partialFault{name: "UDP inbound", hit: lose(wire.Loss{In: 100, UDP: true}), mustUnite: true},
		partialFault{name: "inbound 90, ten minutes", hit: lose(in(90)), mustLeave: true, lasts: longLoss},
		partialFault{name: "inbound 100, ten minutes", hit: lose(in(100)), mustLeave: true, lasts: longLoss},
		partialFault{name: "outbound 100, ten minutes", hit: lose(out(100)), mustLeave: true, lasts: longLoss},
	)
}

// lose returns a fault in which a node loses frames.
func lose(l wire.Loss) func(*testing.T, *spread) {
	return func(t *testing.T, s *spread) { must(t, s.Cluster.Loss(t.Context(), s.hit, l)) }
}

// testL2Loss gives one node inbound or outbound loss: all rows with -matrix, else some.
func testL2Loss(t *testing.T, e *env) {
	s := newSpread(t, e, onLAN)
	for _, tr := range losses() {
		if tr.isSelected() {
			t.Run(tr.name, func(t *testing.T) {
				e.needs(t, "L2Loss/"+tr.name)
				s.run(t, tr)
			})
		}
	}
}
