package liveness

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// lan answers questions as set: so many times of three by MAC, Unasked for those that are not there. Of those who do not answer three times
// the first answer is lost.
type lan struct {
	answers map[lb.MAC]int
	// echoes are the answers to echoes; nil is those of above.
	echoes  map[lb.MAC]int
	foreign []lb.Question
	asked   []lb.Question
	// long counts the calls with time for three questions.
	long int
}

func (l *lan) Ask(_ context.Context, questions []lb.Question, within time.Duration) []int {
	l.asked = append(l.asked, questions...)
	if within >= wireTime {
		l.long++
	}
	out := make([]int, len(questions))
	for i, q := range questions {
		out[i] = lb.Unasked
		answers := l.answers
		if q.Echo && l.echoes != nil {
			answers = l.echoes
		}
		if n, known := answers[q.MAC]; known {
			out[i] = n
			if within < wireTime {
				out[i] = n / 3
			}
		}
	}
	return out
}

func (l *lan) Foreign(name string, n int) (out []lb.Question) {
	for _, q := range l.foreign {
		if q.Link == name && len(out) < n {
			out = append(out, q)
		}
	}
	return out
}

func mac(n byte) lb.MAC { return lb.MAC{2, 0, 0, 0, 0, n} }

func prefixes(all ...string) (out []netip.Prefix) {
	for _, p := range all {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func own() []lb.Interface {
	return []lb.Interface{
		{Name: "eth0", MAC: mac(1), Up: true, Prefixes: prefixes("192.0.2.1/24", "2001:db8::1/64", "fe80::1/64")},
		{Name: "eth1", MAC: mac(11), Up: true, Prefixes: prefixes("198.51.100.1/24")},
	}
}

func neighbours() map[string]lb.Member {
	return map[string]lb.Member{
		"w1": {Links: []lb.Link{
			{Name: "eth0", MAC: mac(1), Prefixes: prefixes("192.0.2.0/24"), Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
			{Name: "eth1", MAC: mac(11), Prefixes: prefixes("198.51.100.0/24"), Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1")}},
		}},
		"w2": {Links: []lb.Link{
			{Name: "lan", MAC: mac(2), Prefixes: prefixes("192.0.2.0/24"), Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}},
			{Name: "fabric", MAC: mac(12), Prefixes: prefixes("198.51.100.0/24"), Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.2")}},
		}},
		"w3": {Links: []lb.Link{{Name: "other", MAC: mac(3), Prefixes: prefixes("203.0.113.0/24")}}},
	}
}

// A node that fell silent is asked for what it announces, at its own MAC and on each link that is shared with it; and
// foreign machines show what the answer is worth.
func TestWire(t *testing.T) {
	gateway := lb.Question{Link: "eth0", MAC: mac(99), Address: netip.MustParseAddr("192.0.2.254")}
	other := lb.Question{Link: "eth0", MAC: mac(98), Address: netip.MustParseAddr("192.0.2.253")}
	for name, tt := range map[string]struct {
		node    string
		answers map[lb.MAC]int
		foreign []lb.Question
		want    heartbeat.Answer
	}{
		"it holds": {"w2", map[lb.MAC]int{mac(2): 3, mac(99): 3}, []lb.Question{gateway},
			heartbeat.Answer{Node: heartbeat.Answered, Foreign: heartbeat.Answered}},
		"only on the other link": {"w2", map[lb.MAC]int{mac(2): 0, mac(12): 3}, nil, heartbeat.Answer{Node: heartbeat.Silent}},
		"one answer is too few":  {"w2", map[lb.MAC]int{mac(2): 1}, nil, heartbeat.Answer{Node: heartbeat.Silent}},
		"it is dead": {"w2", map[lb.MAC]int{mac(2): 0, mac(99): 2}, []lb.Question{gateway},
			heartbeat.Answer{Node: heartbeat.Silent, Foreign: heartbeat.Answered}},
		"our link is": {"w2", map[lb.MAC]int{mac(2): 0, mac(99): 0}, []lb.Question{gateway},
			heartbeat.Answer{Node: heartbeat.Silent, Foreign: heartbeat.Silent}},
		"one foreign is off":      {"w2", map[lb.MAC]int{mac(98): 0, mac(99): 3}, []lb.Question{gateway, other}, heartbeat.Answer{Foreign: heartbeat.Answered}},
		"chance, of two foreign":  {"w2", map[lb.MAC]int{mac(98): 1, mac(99): 2}, []lb.Question{gateway, other}, heartbeat.Answer{Foreign: heartbeat.Silent}},
		"no link is shared":       {"w3", map[lb.MAC]int{mac(3): 3, mac(99): 3}, []lb.Question{gateway}, heartbeat.Answer{}},
		"it sent no metadata":     {"w4", nil, []lb.Question{gateway}, heartbeat.Answer{}},
		"the question is not put": {"w2", nil, []lb.Question{gateway}, heartbeat.Answer{}},
	} {
		l := &lan{answers: tt.answers, foreign: tt.foreign}
		w := newWire(l, own)
		w.set(neighbours(), nil, map[netip.Addr]string{
			netip.MustParseAddr("192.0.2.100"): "w2", netip.MustParseAddr("198.51.100.100"): "w2", netip.MustParseAddr("192.0.2.101"): "w1",
		}, netip.MustParseAddr("192.0.2.1"))
		for _, q := range tt.foreign {
			w.answeredAt[q] = time.Now()
		}
		if got := w.ask(tt.node); got != tt.want {
			t.Errorf("%s: %+v, want %+v; asked %v", name, got, tt.want, l.asked)
		}
		for _, q := range l.asked {
			if q.Address == netip.MustParseAddr("192.0.2.101") {
				t.Errorf("%s: asked for an address of this node", name)
			}
		}
	}
}

// A node whose addresses were taken over is still asked for those that it had.
func TestWireRemembers(t *testing.T) {
	l := &lan{answers: map[lb.MAC]int{mac(2): 3}}
	w := newWire(l, own)
	a := netip.MustParseAddr("192.0.2.100")
	w.set(neighbours(), nil, map[netip.Addr]string{a: "w2"}, netip.MustParseAddr("192.0.2.1"))
	w.set(neighbours(), nil, map[netip.Addr]string{a: "w1"}, netip.MustParseAddr("192.0.2.1"))
	if got := w.ask("w2"); got.Node != heartbeat.Answered || l.asked[0].Address != a {
		t.Errorf("%+v, asked %v", got, l.asked)
	}
	w.set(map[string]lb.Member{}, nil, nil, netip.Addr{})
	if got := w.ask("w2"); got.Node != heartbeat.NotAsked {
		t.Errorf("a node that is gone is asked: %+v", got)
	}
}

// The link of the heartbeats alone counts, unless the node is not on it.
func TestWireOfAnotherLink(t *testing.T) {
	l := &lan{answers: map[lb.MAC]int{mac(12): 3, mac(99): 3}, foreign: []lb.Question{{Link: "eth1", MAC: mac(99)}}}
	w := newWire(l, own)
	w.set(neighbours(), nil, map[netip.Addr]string{netip.MustParseAddr("198.51.100.100"): "w2"}, netip.MustParseAddr("203.0.113.1"))
	if got, want := w.ask("w2"), (heartbeat.Answer{Node: heartbeat.Answered}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// The silence of machines that have been gone for long shows nothing.
func TestWireForeignMachines(t *testing.T) {
	now := time.Now()
	l := &lan{answers: map[lb.MAC]int{mac(2): 0, mac(99): 1}, foreign: []lb.Question{{Link: "eth0", MAC: mac(99)}}}
	w := newWire(l, own)
	w.now = func() time.Time { return now }
	w.set(neighbours(), nil, nil, netip.MustParseAddr("192.0.2.1"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.run(ctx); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		after time.Duration
		want  heartbeat.Reply
	}{{time.Second, heartbeat.Silent}, {foreignTime - 2*time.Second, heartbeat.Silent}, {3 * time.Second, heartbeat.NotAsked}} {
		l.answers[mac(99)] = 0
		now = now.Add(tt.after)
		if got := w.ask("w2").Foreign; got != tt.want {
			t.Errorf("%v later: %v, want %v", tt.after, got, tt.want)
		}
	}
}

// Machines that ask and never answer change nothing: neither does their silence show that this node's link fails, nor do
// they hide one that answers.
func TestWireForgedAskers(t *testing.T) {
	asker := func(n byte) lb.Question { return lb.Question{Link: "eth0", MAC: mac(n)} }
	l := &lan{answers: map[lb.MAC]int{mac(2): 0, mac(98): 3}, foreign: []lb.Question{asker(98)}}
	w := newWire(l, own)
	w.set(neighbours(), nil, nil, netip.MustParseAddr("192.0.2.1"))
	expect := func(what string, want heartbeat.Reply) {
		t.Helper()
		if got := w.ask("w2").Foreign; got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	expect("the router", heartbeat.Answered)
	l.answers[mac(98)] = 0
	expect("the router has no power", heartbeat.Silent)
	l.foreign = nil
	for n := range byte(maxForeign) {
		l.answers[mac(100+n)] = 0
		l.foreign = append(l.foreign, asker(100+n))
	}
	expect("only forged askers", heartbeat.NotAsked)
	l.foreign[maxForeign-1] = asker(90)
	expect("a client that is not there", heartbeat.NotAsked)
	l.answers[mac(90)] = 3
	expect("a client", heartbeat.Answered)
}
