package liveness

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestQuietAtOnce: a silence without a reason is written at once, by the speakers that repeat.
func TestQuietAtOnce(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := epoch.Add(10 * time.Second)
	s := peerHealth{}
	s.update(at, map[string]cause{
		"blocked": unexplained, "dead": unexplained, "left": explained, "new": neverHeard, "unasked": unexplained,
	})
	for node, answers := range map[string]bool{"blocked": true, "dead": false, "left": true, "new": true} {
		s.record(at, node, answers)
	}
	for atOnce, want := range map[bool]string{false: "", true: "blocked@9.7"} {
		if got := named(epoch, s.quiet(at, atOnce)); got != want {
			t.Errorf("at once %t: %q, want %q", atOnce, got, want)
		}
	}
	if !s.hasRecent(at) || s.hasRecent(at.Add(recentTime)) {
		t.Error("it is recent now, and later it is not")
	}
}

// TestInterval: how long after the last write silence asks for the next one.
func TestInterval(t *testing.T) {
	silent := func(nodes string) (out []SilentNode) {
		for _, n := range strings.Fields(nodes) {
			out = append(out, SilentNode{Node: n})
		}
		return out
	}
	written := Silence{Unreachable: silent("u"), Quiet: silent("s")}
	for _, tt := range []struct {
		name               string
		unreachable, quiet string
		missed             int
		recent             bool
		first, others      time.Duration
	}{
		{"nothing is new", "u", "s", 0, false, math.MaxInt64, math.MaxInt64},
		{"a node is missed", "u", "s", 1, false, repeatInterval, math.MaxInt64},
		{"it fell silent just now", "u", "s", 1, true, recentInterval, math.MaxInt64},
		{"a node is unreachable", "u v", "s", 1, false, 0, 0},
		{"a speaker alone is silent", "u", "r s", 1, false, 0, math.MaxInt64},
	} {
		silence := Silence{
			Unreachable: silent(tt.unreachable), Quiet: silent(tt.quiet), missedCount: tt.missed, hasRecent: tt.recent,
		}
		for repeats, want := range map[bool]time.Duration{true: tt.first, false: tt.others} {
			if got := silence.Interval(written, repeats); got != want {
				t.Errorf("%s, repeats %t: %s, want %s", tt.name, repeats, got, want)
			}
		}
	}
}

// TestBlocked: the speakers' ports of node d are blocked, in both directions, while
// its kernel and the API server answer. It yields within a second, and before
// it may take over, at whatever moments the other nodes notice, and it reads.
func TestBlocked(t *testing.T) {
	const step, read, late = 10 * time.Millisecond, voteInterval, 20 * time.Millisecond
	start := time.Unix(1000, 0)
	for phase := time.Duration(0); phase < read; phase += 2 * step {
		for notice := -60 * time.Millisecond; notice <= 60*time.Millisecond; notice += 2 * step {
			if !Repeats("a", nodes("a b c")) {
				t.Fatal("a repeats nothing")
			}
			var written Silence
			writtenAt := start.Add(-time.Minute)
			heard := peerHealth{}
			vote := Vote{Written: "before", Alive: 4}
			w, here := votesByNode{}, peerHealth{}
			yields := time.Duration(-1)
			for elapsed := time.Duration(0); yields < 0; elapsed += step {
				at := start.Add(elapsed)
				if elapsed > doubtTime {
					t.Fatalf("looking at %s, noticed at %s: d never yields", phase, notice)
				}
				if elapsed >= 200*time.Millisecond {
					here.update(at, missing("a b c", unexplained))
					here.record(at, "a", true)
				}
				if elapsed >= 200*time.Millisecond+notice {
					heard.update(at, missing("d", unexplained))
				}
				if elapsed >= 200*time.Millisecond+notice+late && len(heard) > 0 {
					heard.record(at, "d", true)
				}
				silence := Silence{
					Quiet: heard.quiet(at, true), Complete: heard.isComplete(), missedCount: len(heard),
					hasRecent: heard.hasRecent(at),
				}
				if silence.Complete && at.Sub(writtenAt) >= silence.Interval(written, true) {
					written, writtenAt = silence, at
					vote = Vote{Written: at.String(), Alive: 4 - len(heard), Misses: listed(silence.Quiet)}
				}
				if elapsed >= 200*time.Millisecond && (elapsed-phase)%read == 0 {
					w.add(at, "a", vote)
				}
				alone := side{self: "d", alive: nodes("d"), missed: []string{"a", "b", "c"}}
				if got := w.partition(at, alone); len(got.YieldsTo) == 3 {
					yields = elapsed
				}
				if lost, known := here["a"].isLost(at); len(here) > 0 && (!lost || known) {
					t.Fatalf("looking at %s, noticed at %s: d takes over after %s", phase, notice, elapsed)
				}
			}
			if yields > time.Second {
				t.Errorf("looking at %s, noticed at %s: d yields after %s", phase, notice, yields)
			}
		}
	}
}

// TestGoodbyes: a node whose speaker was stopping forwards for a while after it is
// gone. A node whose speaker is there, or was not stopping, does not count.
func TestGoodbyes(t *testing.T) {
	g, at := goodbyes{}, time.Unix(1000, 0)
	stopping, fresh := lb.Member{Stopping: true}, lb.Member{}
	for _, tt := range []struct {
		when      string
		after     time.Duration
		a         lb.Member
		alive     string
		farewells string
		left      bool
		again     time.Duration
	}{
		{"a is stopping", 0, stopping, "a b", "", false, 0},
		{"a has left, b is dead", time.Second, stopping, "", "", true, departedTime},
		{"shortly before time is up", departedTime - time.Second, stopping, "", "", true, time.Second},
		{"time is up", time.Second, stopping, "", "", false, 0},
		{"a is back", time.Second, fresh, "a", "", false, 0},
		{"a has left again", time.Second, stopping, "", "", true, departedTime},
		{"a is back again", time.Second, fresh, "a", "", false, 0},
		{"a has left, and its last metadata was lost", time.Second, fresh, "", "a", true, departedTime},
		{"time is up again", departedTime, fresh, "", "a", false, 0},
	} {
		at = at.Add(tt.after)
		left, again := g.departed(at, map[string]lb.Member{"a": tt.a, "b": {}}, nodes(tt.alive), nodes(tt.farewells))
		if left["a"] != tt.left || left["b"] || again != tt.again {
			t.Errorf("%s: left are %v, again after %v; want a: %t, %v", tt.when, left, again, tt.left, tt.again)
		}
	}
}

// echoTest is a watcher of w2, for which a switch answers ARP.
type echoTest struct {
	*wireChecker
	*lan
	t       *testing.T
	time    time.Time
	changes int
}

func newEchoTest(t *testing.T, echoes int) *echoTest {
	l := &lan{answers: map[lb.MAC]int{mac(2): 3}, echoes: map[lb.MAC]int{mac(2): echoes}}
	e := &echoTest{lan: l, t: t, time: time.Now()}
	e.wireChecker = newWireChecker(Config{Asker: l, Links: own, Changed: func() { e.changes++ }}, func() time.Time {
		return e.time
	})
	e.hears("w2")
	return e
}

// hears sets the nodes that are heard. w2 announces an address.
func (e *echoTest) hears(heard ...string) {
	heardSet := map[string]bool{}
	for _, node := range heard {
		heardSet[node] = true
	}
	owners := map[netip.Addr]string{netip.MustParseAddr("192.0.2.100"): "w2", netip.MustParseAddr("192.0.2.101"): "w1"}
	e.set(neighbours(), heardSet, lb.MapOf(owners), netip.MustParseAddr("192.0.2.1"))
}

// tries lets the time pass, tries the speakers that are due, and reports whether it asked w2.
func (e *echoTest) tries(after time.Duration, echoes int) bool {
	e.time, e.asked, e.echoes[mac(2)] = e.time.Add(after), nil, echoes
	e.tryEchoes(e.t.Context())
	return len(e.asked) > 0
}

func (e *echoTest) want(what string, echoes int, want detect.WireReply, without ...string) {
	e.t.Helper()
	e.echoes[mac(2)] = echoes
	if got := e.ask("w2").Node; got != want {
		e.t.Errorf("%s: %v, want %v", what, got, want)
	}
	if got := e.withoutEcho(); !slices.Equal(got, without) {
		e.t.Errorf("%s: without echo are %v, want %v", what, got, without)
	}
}

// TestEcho: the answer of a switch for a node does not count once the node's echo got through.
func TestEcho(t *testing.T) {
	const late = 2 * trialInterval
	e := newEchoTest(t, 0)
	e.want("not tried yet", 0, detect.Answered)
	if !e.tries(0, 1) || e.tries(trialInterval/3, 1) {
		t.Error("it is tried at once, and then for a while no more")
	}
	e.want("one answer shows that it gets through", 0, detect.Unanswered)
	e.want("it answers", minAnswers, detect.Answered)
	if !e.tries(late, 0) || e.tries(retrialInterval-time.Millisecond, 0) {
		t.Error("it is tried again, and soon after once more")
	}
	e.want("it may have died when it was tried", 0, detect.Unanswered)
	e.hears()
	if e.tries(late, 0) {
		t.Error("it is tried while it is not heard")
	}
	e.hears("w2")
	if !e.tries(0, 0) {
		t.Error("another run is not tried at once")
	}
	e.want("another run, tried once", 0, detect.Unanswered)
	e.tries(retrialInterval, 0)
	e.want("it is heard, and its echo is not", 0, detect.Answered, "w2")
	e.tries(late, 3)
	e.want("it gets through again", 0, detect.Unanswered)
	if e.changes != 2 {
		t.Errorf("%d changes, want 2", e.changes)
	}
}

// A speaker is tried before it announces anything: when it dies right after its first announcement, it is known whether
// its echo gets through. A blocked echo is reported only for a speaker that announces.
func TestEchoOfTheIdle(t *testing.T) {
	e := newEchoTest(t, 0)
	announced, owns := e.announced, e.ownedBy
	e.announced, e.ownedBy = map[string]lb.Map[netip.Addr, struct{}]{}, map[string]lb.Map[netip.Addr, struct{}]{}
	if !e.tries(0, 0) || !e.tries(retrialInterval, 0) || len(e.withoutEcho()) != 0 {
		t.Errorf("asked %v, without echo are %v", e.asked, e.withoutEcho())
	}
	isAnnounced := func(q lb.Question) bool { return q.Echo && !q.Address.IsUnspecified() }
	if e.tries(2*trialInterval, 1); len(e.asked) == 0 || slices.ContainsFunc(e.asked, isAnnounced) {
		t.Errorf("asked %v, want about no address: it may have lost what it announced before", e.asked)
	}
	e.announced, e.ownedBy = announced, owns
	e.want("dead as soon as it announces", 0, detect.Unanswered)
}

// TestEchoBlockedElsewhere: on another link, too, an echo is blocked only where other frames of its node get through,
// and not while its port is dead.
func TestEchoBlockedElsewhere(t *testing.T) {
	for _, kernel := range []int{0, 3} {
		e := newEchoTest(t, 3)
		e.answers[mac(12)], e.echoes[mac(12)] = kernel, 0
		e.tries(0, 3)
		e.tries(retrialInterval, 3)
		if got, want := e.withoutEcho(), []string{"w2"}; slices.Equal(got, want) != (kernel > 0) {
			t.Errorf("of its kernel come %d answers: without echo are %v", kernel, got)
		}
		e.echoes[mac(12)] = 3
		if e.tries(2*trialInterval, 3); len(e.withoutEcho()) > 0 {
			t.Errorf("its echo gets through, and reported are %v", e.withoutEcho())
		}
	}
}

// A speaker that dies during a trial, or cannot be asked, shows nothing.
func TestEchoOfTheDying(t *testing.T) {
	e := newEchoTest(t, 0)
	e.tries(0, 3)
	for range 5 {
		e.trials["w2"] = e.trials["w2"].after(e.time, 0, false)
	}
	delete(e.echoes, mac(2))
	for range 5 {
		e.time = e.time.Add(2 * trialInterval)
		e.tryEchoes(t.Context())
	}
	e.want("its echo got through", 0, detect.Unanswered)
}

// A speaker that is heard and whose echo is not is a Problem of this node, until its echo gets through.
func TestEchoBlocked(t *testing.T) {
	l := &lan{answers: map[lb.MAC]int{mac(2): 3}, echoes: map[lb.MAC]int{mac(2): 0}}
	changes := 0
	at := time.Now()
	m := newMonitor(Config{
		Log: quiet, Node: node("w1"), Cluster: twoNodes{}, Asker: l, Links: own,
		Changed: func() { changes++ }, SilenceChanged: func() {}, KickProbe: func() {},
	}, func() time.Time { return at })
	m.Set(Known{
		View: detect.NodeSets{Alive: nodes("w1 w2")}, Members: neighbours(), Address: netip.MustParseAddr("192.0.2.1"),
	})
	var none lb.Map[netip.Addr, string]
	m.SetOwners(lb.MapOf(map[netip.Addr]string{netip.MustParseAddr("192.0.2.100"): "w2"}))
	for range minMissedTrials {
		m.wire.tryEchoes(t.Context())
		at = at.Add(retrialInterval)
	}
	if p := m.State().Problems; len(p) != 1 || p[0].Reason != lb.EchoBlocked || p[0].Object != node("w1") {
		t.Errorf("problems: %v", p)
	}
	l.echoes[mac(2)], at = 1, at.Add(2*trialInterval)
	m.wire.tryEchoes(t.Context())
	if p := m.State().Problems; len(p) != 0 || changes != 2 {
		t.Errorf("problems: %v after %d changes", p, changes)
	}

	// A node without addresses is no Problem, even if its echo is blocked.
	l.echoes[mac(2)] = 0
	for range minMissedTrials {
		at = at.Add(2 * trialInterval)
		m.wire.tryEchoes(t.Context())
	}
	blocked := len(m.State().Problems)
	if m.SetOwners(none); blocked != 1 || len(m.State().Problems) != 0 || changes != 4 {
		t.Errorf("%d problems, then %v after %d changes", blocked, m.State().Problems, changes)
	}
}

// TestPortsBlocked: either the heartbeats or the gossip of a node does not arrive. The Problem names the port.
func TestPortsBlocked(t *testing.T) {
	c := Config{Node: node("w1"), MembersPort: 7947, HeartbeatPort: 7948}
	for want, member := range map[string]detect.Member{
		"node w1 gets no heartbeats from w2 on UDP port 7948, though":    {Name: "w2", Blocked: true},
		"node w1 gets no heartbeats from w2 on UDP port 7948 of link e0": {Name: "w2", Blocked: true, ByFrames: true},
		"node w1 gets no gossip from w2 on TCP and UDP port 7947, ":      {Name: "w2", GossipBlocked: true},
	} {
		got := networkProblems(c, []detect.Member{{Name: "w1"}, member, {Name: "w3"}}, nil, "e0", linkFindings{})
		if len(got) != 1 || got[0].Reason != lb.HeartbeatsBlocked || !strings.HasPrefix(got[0].Message, want) {
			t.Errorf("%+v: %+v", member, got)
		}
	}
}

// Only speakers that are heard are tried, and not too many at once.
func TestEchoesDue(t *testing.T) {
	m := New(Config{
		Log: quiet, Node: node("self"), Cluster: twoNodes{}, Changed: func() {}, SilenceChanged: func() {},
		KickProbe: func() {},
	})
	for alone, want := range map[bool]map[string]bool{false: nodes("heard"), true: {}} {
		v := detect.NodeSets{Alive: nodes("self heard silent down"), Silent: nodes("silent"), SpeakerDown: nodes("down")}
		v.Alone = alone
		m.Set(Known{View: v})
		if m.SetOwners(lb.Map[netip.Addr, string]{}); !maps.Equal(m.wire.heard, want) {
			t.Errorf("alone %t: %v are heard", alone, m.wire.heard)
		}
	}
	e := newEchoTest(t, 0)
	for i := range 3 * maxTrials {
		name := string(rune('A' + i))
		e.heard[name] = true
	}
	for range 5 {
		if n := len(e.dueNodes()); n != maxTrials {
			t.Errorf("%d are tried at once", n)
		}
	}
}
