package liveness

import (
	"bytes"
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// lan answers questions as set: so many times of three by MAC, Unasked for a machine that is not there. If a machine
// answers less than three times, its first answer is lost.
type lan struct {
	mu      sync.Mutex // for askers in another goroutine
	answers map[lb.MAC]int
	// echoes are the answers to echoes, nil for the same as answers. Speakers answer about lb.Hearing unless they are
	// deaf, and about lb.NotHearing if they are. Older speakers answer about neither.
	echoes    map[lb.MAC]int
	deaf, old bool
	foreign   []lb.Question
	asked     []lb.Question
	// long counts the calls with time for three questions.
	long int
}

func (l *lan) Ask(_ context.Context, questions []lb.Question, within time.Duration) []int {
	l.mu.Lock()
	defer l.mu.Unlock()
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
		isOther := q.Address == lb.Hearing && (l.deaf || l.old) || q.Address == lb.NotHearing && (!l.deaf || l.old)
		if n, known := answers[q.MAC]; known && !isOther {
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

// wireConfig has a node's own links on a LAN.
func wireConfig(l *lan) Config { return Config{Asker: l, Links: own, Changed: func() {}} }

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
			{Name: "eth0", MAC: mac(1), Prefixes: prefixes("192.0.2.0/24"),
				Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
			{Name: "eth1", Default: true, MAC: mac(11), Prefixes: prefixes("198.51.100.0/24"),
				Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1")}},
		}},
		"w2": {Links: []lb.Link{
			{Name: "lan", MAC: mac(2), Prefixes: prefixes("192.0.2.0/24"),
				Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}},
			{Name: "fabric", Default: true, MAC: mac(12), Prefixes: prefixes("198.51.100.0/24"),
				Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.2")}},
		}},
		"w3": {Links: []lb.Link{{Name: "other", MAC: mac(3), Prefixes: prefixes("203.0.113.0/24")}}},
	}
}

// TestWire: a node that fell silent is asked for what it announces, at its own MAC and on each shared link. Foreign
// machines show whether this node's link works.
func TestWire(t *testing.T) {
	gateway := lb.Question{Link: "eth0", MAC: mac(99), Address: netip.MustParseAddr("192.0.2.254")}
	other := lb.Question{Link: "eth0", MAC: mac(98), Address: netip.MustParseAddr("192.0.2.253")}
	for name, tt := range map[string]struct {
		node    string
		answers map[lb.MAC]int
		foreign []lb.Question
		want    detect.WireAnswer
	}{
		"it holds": {"w2", map[lb.MAC]int{mac(2): 3, mac(99): 3}, []lb.Question{gateway},
			detect.WireAnswer{Node: detect.Answered, Foreign: detect.Answered}},
		"only on the other link": {"w2", map[lb.MAC]int{mac(2): 0, mac(12): 3}, nil,
			detect.WireAnswer{Node: detect.Unanswered, Elsewhere: detect.Answered, Hears: true}},
		"one answer is too few": {"w2", map[lb.MAC]int{mac(2): 1}, nil, detect.WireAnswer{Node: detect.Unanswered}},
		"it is dead": {"w2", map[lb.MAC]int{mac(2): 0, mac(99): 2}, []lb.Question{gateway},
			detect.WireAnswer{Node: detect.Unanswered, Foreign: detect.Answered}},
		"our link is": {"w2", map[lb.MAC]int{mac(2): 0, mac(99): 0}, []lb.Question{gateway},
			detect.WireAnswer{Node: detect.Unanswered, Foreign: detect.Unanswered}},
		"one foreign is off": {"w2", map[lb.MAC]int{mac(98): 0, mac(99): 3}, []lb.Question{gateway, other},
			detect.WireAnswer{Foreign: detect.Answered}},
		"chance, of two foreign": {"w2", map[lb.MAC]int{mac(98): 1, mac(99): 2}, []lb.Question{gateway, other},
			detect.WireAnswer{Foreign: detect.Unanswered}},
		"no link is shared":       {"w3", map[lb.MAC]int{mac(3): 3, mac(99): 3}, []lb.Question{gateway}, detect.WireAnswer{}},
		"it sent no metadata":     {"w4", nil, []lb.Question{gateway}, detect.WireAnswer{}},
		"the question is not put": {"w2", nil, []lb.Question{gateway}, detect.WireAnswer{}},
	} {
		l := &lan{answers: tt.answers, foreign: tt.foreign}
		w := newWireChecker(wireConfig(l), time.Now)
		w.set(neighbours(), nil, lb.MapOf(map[netip.Addr]string{
			netip.MustParseAddr("192.0.2.100"): "w2", netip.MustParseAddr("198.51.100.100"): "w2",
			netip.MustParseAddr("192.0.2.101"): "w1",
		}), netip.MustParseAddr("192.0.2.1"))
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

// A node whose addresses were taken over is still asked for its former addresses.
func TestWireRemembers(t *testing.T) {
	l := &lan{answers: map[lb.MAC]int{mac(2): 3}}
	w := newWireChecker(wireConfig(l), time.Now)
	a := netip.MustParseAddr("192.0.2.100")
	w.set(neighbours(), nil, lb.MapOf(map[netip.Addr]string{a: "w2"}), netip.MustParseAddr("192.0.2.1"))
	w.set(neighbours(), nil, lb.MapOf(map[netip.Addr]string{a: "w1"}), netip.MustParseAddr("192.0.2.1"))
	if got := w.ask("w2"); got.Node != detect.Answered || l.asked[0].Address != a {
		t.Errorf("%+v, asked %v", got, l.asked)
	}
	w.set(map[string]lb.Member{}, nil, lb.MapOf(map[netip.Addr]string{}), netip.Addr{})
	if got := w.ask("w2"); got.Node != detect.NotAsked {
		t.Errorf("a node that is gone is asked: %+v", got)
	}
}

// TestWireElsewhere asks a silent node on the other link whether its speaker runs, and whether it hears another machine
// on the link of the heartbeats. Its silence there counts once its echo got through there.
func TestWireElsewhere(t *testing.T) {
	const none, silent, answered = detect.NotAsked, detect.Unanswered, detect.Answered
	gateway := []lb.Question{{Link: "eth1", MAC: mac(99), Address: netip.MustParseAddr("198.51.100.254")}}
	deaf, old := func(l *lan) { l.deaf = true }, func(l *lan) { l.old = true }
	for name, tt := range map[string]struct {
		node, gateway int
		change        func(*lan)
		isUntried     bool
		want          detect.WireAnswer
	}{
		"it hears": {3, 3, nil, false, detect.WireAnswer{
			Elsewhere: answered, Hears: true, ForeignElsewhere: answered,
		}},
		"it does not": {3, 3, deaf, false, detect.WireAnswer{
			Elsewhere: answered, HearsNone: true, ForeignElsewhere: answered,
		}},
		"it is older":              {3, 3, old, false, detect.WireAnswer{Elsewhere: answered, ForeignElsewhere: answered}},
		"it is dead":               {0, 3, nil, false, detect.WireAnswer{Elsewhere: silent, ForeignElsewhere: answered}},
		"it was never heard there": {0, 3, nil, true, detect.WireAnswer{Elsewhere: none, ForeignElsewhere: answered}},
		"our link fails too":       {0, 0, nil, false, detect.WireAnswer{Elsewhere: silent, ForeignElsewhere: silent}},
		"one answer is too few":    {1, 3, nil, false, detect.WireAnswer{Elsewhere: silent, ForeignElsewhere: answered}},
		"first answer, and not tried": {3, 0, nil, true, detect.WireAnswer{
			Elsewhere: answered, Hears: true, ForeignElsewhere: silent,
		}},
	} {
		l := &lan{answers: map[lb.MAC]int{mac(12): tt.node, mac(99): tt.gateway}, foreign: gateway}
		if tt.change != nil {
			tt.change(l)
		}
		w := newWireChecker(wireConfig(l), time.Now)
		w.set(neighbours(), nil, lb.MapOf(map[netip.Addr]string{}), netip.MustParseAddr("192.0.2.1"))
		w.trialsElsewhere["w2"] = echoTrial{getsThrough: !tt.isUntried}
		if got := w.ask("w2"); got != tt.want {
			t.Errorf("%s: %+v, want %+v; asked %v", name, got, tt.want, l.asked)
		}
		if w.hearsForeign() {
			t.Errorf("%s: a foreign machine on another link counts as one on the link of the heartbeats", name)
		}
	}
}

// TestWireWithoutOwnLink: the link of the heartbeats has lost its carrier, or is gone. An answer of the other node on
// another link does not show that it works.
func TestWireWithoutOwnLink(t *testing.T) {
	lost := own()
	lost[0].Up = false
	for name, links := range map[string][]lb.Interface{"no carrier": lost, "no link": own()[1:]} {
		l := &lan{answers: map[lb.MAC]int{mac(12): 3}}
		w := newWireChecker(Config{Asker: l, Links: func() []lb.Interface { return links }, Changed: func() {}}, time.Now)
		owners := lb.MapOf(map[netip.Addr]string{netip.MustParseAddr("198.51.100.100"): "w2"})
		w.set(neighbours(), nil, owners, netip.MustParseAddr("192.0.2.1"))
		want := detect.WireAnswer{Elsewhere: detect.Answered, Hears: true}
		if got := w.ask("w2"); got != want {
			t.Errorf("%s: %+v, want %+v; asked %v", name, got, want, l.asked)
		}
	}
}

// TestWireHearsForeign: a foreign machine on the link of the heartbeats counts for a second, and only while it answers.
func TestWireHearsForeign(t *testing.T) {
	at := time.Now()
	l := &lan{answers: map[lb.MAC]int{mac(99): 3}, foreign: []lb.Question{{Link: "eth0", MAC: mac(99)}}}
	w := newWireChecker(wireConfig(l), func() time.Time { return at })
	w.set(neighbours(), nil, lb.MapOf(map[netip.Addr]string{}), netip.MustParseAddr("192.0.2.1"))
	if w.hearsForeign() {
		t.Error("it was not asked")
	}
	if w.ask("w2"); !w.hearsForeign() {
		t.Error("it answered")
	}
	if at = at.Add(time.Second); w.hearsForeign() {
		t.Error("it answered a second ago")
	}
	w.ask("w2")
	l.answers[mac(99)] = 0
	if w.ask("w2"); w.hearsForeign() {
		t.Error("it did not answer last")
	}
}

// Only the link of the heartbeats counts, unless the node is not on it.
func TestWireOfAnotherLink(t *testing.T) {
	l := &lan{answers: map[lb.MAC]int{mac(12): 3, mac(99): 3}, foreign: []lb.Question{{Link: "eth1", MAC: mac(99)}}}
	w := newWireChecker(wireConfig(l), time.Now)
	w.set(neighbours(), nil, lb.MapOf(map[netip.Addr]string{netip.MustParseAddr("198.51.100.100"): "w2"}),
		netip.MustParseAddr("203.0.113.1"))
	if got, want := w.ask("w2"), (detect.WireAnswer{Node: detect.Answered}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// The silence of machines that have been gone for long shows nothing.
func TestWireForeignMachines(t *testing.T) {
	at := time.Now()
	l := &lan{answers: map[lb.MAC]int{mac(2): 0, mac(99): 1}, foreign: []lb.Question{{Link: "eth0", MAC: mac(99)}}}
	w := newWireChecker(wireConfig(l), func() time.Time { return at })
	w.set(neighbours(), nil, lb.MapOf(map[netip.Addr]string{}), netip.MustParseAddr("192.0.2.1"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.run(ctx); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		after time.Duration
		want  detect.WireReply
	}{{time.Second, detect.Unanswered}, {foreignLifetime - 2*time.Second, detect.Unanswered},
		{3 * time.Second, detect.NotAsked}} {
		l.answers[mac(99)] = 0
		at = at.Add(tt.after)
		if got := w.ask("w2").Foreign; got != tt.want {
			t.Errorf("%v later: %v, want %v", tt.after, got, tt.want)
		}
	}
}

// Machines that ask and never answer change nothing: their silence does not show that this node's link fails, and they
// hide no machine that answers.
func TestWireForgedAskers(t *testing.T) {
	asker := func(n byte) lb.Question { return lb.Question{Link: "eth0", MAC: mac(n)} }
	l := &lan{answers: map[lb.MAC]int{mac(2): 0, mac(98): 3}, foreign: []lb.Question{asker(98)}}
	w := newWireChecker(wireConfig(l), time.Now)
	w.set(neighbours(), nil, lb.MapOf(map[netip.Addr]string{}), netip.MustParseAddr("192.0.2.1"))
	expect := func(what string, want detect.WireReply) {
		t.Helper()
		if got := w.ask("w2").Foreign; got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	expect("the router", detect.Answered)
	l.answers[mac(98)] = 0
	expect("the router has no power", detect.Unanswered)
	l.foreign = nil
	for n := range byte(maxForeign) {
		l.answers[mac(100+n)] = 0
		l.foreign = append(l.foreign, asker(100+n))
	}
	expect("only forged askers", detect.NotAsked)
	l.foreign[maxForeign-1] = asker(90)
	expect("a client that is not there", detect.NotAsked)
	l.answers[mac(90)] = 3
	expect("a client", detect.Answered)
}

// fabric is an owner, w2, and a watcher, w1, on a switch. The owner's speaker runs until stop is called.
type fabric struct {
	owner, watcher, bridge *nstest.NS
	speaker                *layer2.Responder
	stop                   func()
	wire                   *wireChecker
	// time is the watcher's.
	time time.Time
}

var keys = [][]byte{bytes.Repeat([]byte{7}, 32)}

// addresses that the owner announces.
var addresses = []netip.Addr{netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("2001:db8::100")}

func newFabric(t *testing.T, address netip.Addr) *fabric {
	f := &fabric{owner: nstest.Self(t), watcher: nstest.New(t), bridge: nstest.New(t)}
	nstest.Veth(t, f.owner, "eth0", f.bridge, "port0")
	nstest.Veth(t, f.watcher, "eth0", f.bridge, "port1")
	t.Cleanup(func() { f.owner.Delete("eth0") })
	f.bridge.Bridge("br0", "port0", "port1")
	f.owner.AddAddress("eth0", "192.0.2.2/24", "2001:db8::2/64", "fe80::2/64")
	f.watcher.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64", "fe80::1/64")
	f.speaker = responder(f.owner, "192.0.2.2/24", "2001:db8::2/64", "fe80::2/64")
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- f.speaker.Run(ctx) }()
	f.stop = func() { stop(); <-ran; ran <- nil }
	t.Cleanup(f.stop)
	f.speaker.Set(layer2.Desired{Announcements: lb.MapOf(map[netip.Addr]*lb.Announcement{
		addresses[0]: {}, addresses[1]: {},
	})})

	asker := responder(f.watcher, "192.0.2.1/24", "2001:db8::1/64", "fe80::1/64")
	f.speaker.SetKeys(keys)
	asker.SetKeys(keys)
	f.time = time.Now()
	f.wire = newWireChecker(Config{Asker: asker, Changed: func() {}, Links: func() []lb.Interface {
		return []lb.Interface{eth0(f.watcher, "192.0.2.1/24", "2001:db8::1/64", "fe80::1/64")}
	}}, func() time.Time { return f.time })
	f.wire.set(map[string]lb.Member{"w2": {Links: []lb.Link{{
		Name: "eth0", MAC: eth0(f.owner).MAC, Prefixes: prefixes("192.0.2.0/24", "2001:db8::/64"),
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")},
	}}}}, map[string]bool{"w2": true}, lb.MapOf(map[netip.Addr]string{address: "w2"}), netip.MustParseAddr("192.0.2.1"))
	return f
}

func eth0(ns *nstest.NS, of ...string) lb.Interface {
	a := ns.Link("eth0").Attrs()
	return lb.Interface{Index: a.Index, Name: a.Name, MAC: lb.MACFrom(a.HardwareAddr), Up: true, Prefixes: prefixes(of...)}
}

func responder(ns *nstest.NS, of ...string) *layer2.Responder {
	return responderOn(func() []lb.Interface { return []lb.Interface{eth0(ns, of...)} })
}

func responderOn(links func() []lb.Interface) *layer2.Responder {
	return layer2.New(layer2.Config{
		Log: quiet, Links: links, Gateways: func(int) []lb.Neighbour { return nil }, Changed: func() {}, Refused: func() {},
	})
}

// ask returns the watcher's result about the owner.
func (f *fabric) ask() (reply detect.WireReply) {
	f.watcher.Do(func() { reply = f.wire.ask("w2").Node })
	return reply
}

// try makes the watcher try the owner's echo until trials show whether it gets through.
func (f *fabric) try(t *testing.T, echoes bool) {
	t.Helper()
	nstest.Until(t, 30*time.Second, "trials", func() bool {
		f.watcher.Do(func() { f.wire.tryEchoes(t.Context()) })
		f.time = f.time.Add(retrialInterval)
		return f.wire.trials["w2"].getsThrough == echoes && (len(f.wire.withoutEcho()) == 0) == echoes
	})
}

// proxy makes the switch answer for the owner's addresses.
func (f *fabric) proxy(option string) {
	mac := f.owner.MAC("eth0").String()
	f.bridge.Output("ip", "link", "set", "dev", "port0", "type", "bridge_slave", option, "on")
	f.bridge.Output("bridge", "fdb", "replace", mac, "dev", "port0", "master", "static")
	for _, a := range addresses {
		f.bridge.Output("ip", "neigh", "replace", a.String(), "lladdr", mac, "dev", "br0", "nud", "permanent")
	}
}

// impersonate makes a kernel answer for the owner's addresses by its MAC, by ARP and by Neighbor Discovery: like a
// switch that answers for other machines.
func (f *fabric) impersonate() {
	f.owner.Output("ip", "address", "add", addresses[0].String()+"/32", "dev", "eth0")
	f.owner.Output("ip", "address", "add", addresses[1].String()+"/128", "dev", "eth0", "nodad")
}

// each runs a test with an owner of an address of each family.
func each(t *testing.T, test func(t *testing.T, f *fabric)) {
	nstest.Run(t, func(t *testing.T) {
		for _, address := range addresses {
			t.Run(address.String(), func(t *testing.T) { test(t, newFabric(t, address)) })
		}
	})
}

func (f *fabric) want(t *testing.T, what string, want detect.WireReply) {
	t.Helper()
	// A busy machine may be late to answer, which is asked again. No machine answers for the dead even once.
	if want == detect.Answered {
		nstest.Until(t, 30*time.Second, what, func() bool { return f.ask() == want })
	}
	if got := f.ask(); want == detect.Unanswered && got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// Because of a switch that answers for other machines, no dead owner counts as alive, and no living owner as dead.
func TestSwitchThatAnswers(t *testing.T) {
	for _, by := range []string{"proxy_arp_wifi", "neigh_suppress", "another kernel"} {
		t.Run(by, func(t *testing.T) {
			each(t, func(t *testing.T, f *fabric) {
				f.try(t, true)
				if by != "another kernel" {
					f.proxy(by)
				}
				f.want(t, "alive", detect.Answered)
				f.stop()
				if by == "another kernel" {
					f.impersonate()
				}
				f.want(t, "dead", detect.Unanswered)
			})
		})
	}
}

// A fabric that drops the echo, or a speaker that has none: ARP and Neighbor Discovery decide.
func TestWithoutEcho(t *testing.T) {
	for _, why := range []string{"dropped", "older speaker"} {
		t.Run(why, func(t *testing.T) {
			each(t, func(t *testing.T, f *fabric) {
				if why == "dropped" {
					f.try(t, true)
					f.bridge.Output("nft", "add table bridge t; add chain bridge t c { type filter hook forward priority 0; }; add "+
						"rule bridge t c ether type 0x88b5 drop")
				} else {
					f.speaker.SetKeys(nil)
				}
				f.try(t, false)
				f.want(t, "alive", detect.Answered)
				f.stop()
				f.want(t, "dead", detect.Unanswered)
			})
		})
	}
}
