package liveness

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// secondNetwork is a watch of the second link of a node, whose carrier and time a test controls.
type secondNetwork struct {
	*linkWatcher
	t       *testing.T
	lan     *lan
	time    time.Time
	present []lb.Interface
	members map[string]lb.Member
	// frames are what frames show on eth1.
	frames  detect.LinkView
	changes int
}

// newSecondNetwork returns a watch of eth1, on which w2 answers. The link is up when the speaker starts, or not.
func newSecondNetwork(t *testing.T, up bool) *secondNetwork {
	n := &secondNetwork{
		t: t, lan: &lan{answers: map[lb.MAC]int{mac(2): 3, mac(12): 3}}, time: time.Now(),
		present: own(), members: neighbours(),
	}
	n.eth1().CarrierChanges, n.eth1().Up = 7, up
	config := Config{
		Log: quiet, Node: node("w1"), Asker: n.lan, Changed: func() { n.changes++ },
		Links: func() []lb.Interface { return slices.Clone(n.present) },
	}
	n.linkWatcher = newLinkWatcher(config, func() Known {
		k := known(n.members, living(n.members), netip.MustParseAddr("192.0.2.1"))()
		k.View.Links = []detect.LinkView{n.frames}
		return k
	}, func() time.Time { return n.time })
	return n
}

func (n *secondNetwork) eth1() *lb.Interface { return &n.present[1] }

// setUp gives the link a carrier, or takes it away.
func (n *secondNetwork) setUp(up bool) {
	n.eth1().Up = up
	n.eth1().CarrierChanges++
}

// forward makes all machines on the network answer, or none.
func (n *secondNetwork) forward(forwards bool) {
	n.lan.answers[mac(12)] = map[bool]int{true: 3}[forwards]
}

// pass lets rounds run for a while.
func (n *secondNetwork) pass(long time.Duration) {
	for end := n.time.Add(long); n.time.Before(end); n.time = n.time.Add(linkInterval) {
		n.askRound(n.t.Context())
	}
}

// flap takes the carrier away for a second.
func (n *secondNetwork) flap() {
	n.setUp(false)
	n.pass(time.Second)
	n.setUp(true)
}

// announces reports whether the node uses the link as other nodes do.
func (n *secondNetwork) announces() bool { return n.eth1().Up && !n.Silent()["eth1"] }

func (n *secondNetwork) want(what string, announces bool) {
	n.t.Helper()
	if got := n.announces(); got != announces {
		n.t.Errorf("%s: announces %t, want %t", what, got, announces)
	}
}

// wantHeld expects that the link is used again after the given time.
func (n *secondNetwork) wantHeld(what string, held time.Duration) {
	n.t.Helper()
	n.pass(held - time.Second)
	n.want(what+": too early", false)
	n.pass(3 * time.Second)
	n.want(what+": too late", true)
}

// A port that has its carrier back does not forward yet, as with spanning tree. The link is silent from the first
// moment, until machines have answered for ten seconds.
func TestLinkReturnsBlocked(t *testing.T) {
	n := newSecondNetwork(t, true)
	n.pass(time.Minute)
	n.want("at rest", true)
	n.forward(false)
	n.flap()
	n.want("as soon as the carrier is back", false)
	n.pass(30 * time.Second)
	n.want("while the port is blocked", false)
	n.forward(true)
	n.wantHeld("the port forwards", linkHoldTime)
}

// A port that flaps 12 times in a minute takes the addresses away once, and back once.
func TestLinkFlaps(t *testing.T) {
	n := newSecondNetwork(t, true)
	n.pass(time.Minute)
	moves, before := 0, true
	look := func() {
		at := n.announces()
		if at != before {
			moves++
		}
		before = at
	}
	for range 12 {
		n.setUp(false)
		look()
		n.pass(time.Second)
		n.setUp(true)
		look()
		n.pass(4 * time.Second)
		look()
	}
	n.pass(linkHoldTime)
	look()
	if moves != 2 || !before {
		t.Errorf("%d moves, want 2; announces %t in the end", moves, before)
	}
}

// As for nodes, the time doubles from the third loss on, up to five minutes. A loss while the link waits begins the
// time again, without doubling it. Ten calm minutes forgive all losses.
func TestLinkWaitsDoubled(t *testing.T) {
	n := newSecondNetwork(t, true)
	n.pass(time.Minute)
	for _, held := range []time.Duration{10, 10, 20, 40, 80, 160, 300, 300} {
		n.flap()
		n.wantHeld("after a loss", held*time.Second)
	}
	n.flap()
	n.pass(200 * time.Second)
	n.flap()
	n.wantHeld("after a loss while it waits", maxLinkHoldTime)
	n.pass(linkForgiveTime)
	n.flap()
	n.wantHeld("after ten calm minutes", linkHoldTime)

	n.forward(false)
	n.pass(5 * time.Second)
	n.forward(true)
	n.wantHeld("a silence is a loss, too: the second one", linkHoldTime)
	n.flap()
	n.wantHeld("the third loss", 2*linkHoldTime)
}

// One round without an answer restarts the ten seconds, and not the whole time.
func TestLinkMissesOneRound(t *testing.T) {
	n := newSecondNetwork(t, true)
	n.pass(time.Minute)
	for range 4 {
		n.flap()
		n.pass(maxLinkHoldTime)
	}
	n.flap()
	n.pass(60 * time.Second)
	n.forward(false)
	n.pass(linkInterval)
	n.forward(true)
	n.wantHeld("80 s after its return", 20*time.Second)
}

// The carrier went and came back between two readings of the links: only its count shows that.
func TestLinkFlapsUnseen(t *testing.T) {
	n := newSecondNetwork(t, true)
	n.pass(time.Minute)
	n.eth1().CarrierChanges += 2
	n.want("the carrier is another one", false)
	n.wantHeld("it has not been seen down", linkHoldTime)
	n.eth1().Index++
	n.want("another link has its name", false)
}

// A link that is removed and made again has returned, such as a VLAN while its bond is configured.
func TestLinkIsMadeAgain(t *testing.T) {
	n := newSecondNetwork(t, true)
	n.pass(time.Minute)
	all := n.present
	n.present = all[:1]
	n.pass(time.Hour)
	n.present = slices.Clone(all)
	n.eth1().Index, n.eth1().CarrierChanges = 9, 2
	n.want("made again", false)
	n.wantHeld("made again", linkHoldTime)
}

// To a new speaker the links that are up count as up for long, however often they lost their carriers.
func TestSpeakerStartIsNoReturn(t *testing.T) {
	n := newSecondNetwork(t, true)
	n.present = nil // not read yet
	n.wantUnread()
	n.present = own()
	n.eth1().CarrierChanges = 99
	n.want("at its start", true)
	n.forward(false)
	n.pass(time.Minute)
	n.want("no machine ever answered", true)
}

// The links of a node that booted a short while ago came up a short while ago, whenever its speaker starts.
func TestLinksOfABootedNode(t *testing.T) {
	for age, announces := range map[time.Duration]bool{40 * time.Second: false, 2 * time.Minute: true} {
		n := newSecondNetwork(t, true)
		n.linkWatcher.config.BootedAt = n.time.Add(-age)
		n.forward(false)
		n.want(fmt.Sprintf("booted %v ago", age), announces)
		n.pass(time.Minute)
		n.want(fmt.Sprintf("a minute later, booted %v ago", age), true)
	}
}

// wantUnread expects that nothing is known before the links were read.
func (n *secondNetwork) wantUnread() {
	n.t.Helper()
	if got := n.Silent(); len(got) > 0 {
		n.t.Errorf("silent are %v before the links were read", got)
	}
}

// A link on which no machine ever answered does not wait, whatever nodes should be there.
func TestEmptyLinkReturns(t *testing.T) {
	networks := map[string]map[string]lb.Member{
		"others are not heard": neighbours(),
		"no other node":        {"w1": neighbours()["w1"]},
	}
	for name, members := range networks {
		n := newSecondNetwork(t, true)
		n.members = members
		n.forward(false)
		n.pass(time.Minute)
		for range 5 {
			n.flap()
			n.want(name, true)
			n.pass(3 * time.Second)
			n.want(name, true)
		}
	}
}

// A link that comes up after the start of its speaker leaves addresses to others until machines have answered for ten
// seconds, for a minute at most without any answer.
func TestLinkComesUp(t *testing.T) {
	n := newSecondNetwork(t, false)
	n.pass(time.Minute)
	n.forward(false)
	n.setUp(true)
	n.want("blocked", false)
	n.pass(30 * time.Second)
	n.want("still blocked", false)
	n.forward(true)
	n.wantHeld("forwards", linkHoldTime)

	n = newSecondNetwork(t, false)
	n.pass(time.Minute)
	n.forward(false)
	n.setUp(true)
	n.wantHeld("no machine answers", linkNewTime)
	n.flap()
	n.want("no machine has ever answered", true)

	n = newSecondNetwork(t, false)
	n.members = map[string]lb.Member{"w1": neighbours()["w1"]}
	n.pass(time.Minute)
	n.setUp(true)
	n.want("no other node is there", true)
}

// setOthers makes the other node report that its link is silent, or not.
func (n *secondNetwork) setOthers(silent bool) {
	n.members = neighbours()
	n.members["w2"].Links[1].Silent = silent
}

// All links of a switch return with it: no node waits for others that wait, too.
func TestSwitchReturns(t *testing.T) {
	n := newSecondNetwork(t, true)
	n.pass(time.Minute)
	n.forward(false)
	n.setOthers(true)
	n.flap()
	n.pass(30 * time.Second)
	n.want("no machine answers", false)
	n.forward(true)
	n.pass(linkInterval)
	n.want("one answers", true)

	// A wait ends, too, when the only other link fails.
	for range 5 {
		n.setOthers(false)
		n.flap()
		n.pass(30 * time.Second)
	}
	n.want("the other link works", false)
	n.setOthers(true)
	n.pass(linkInterval)
	n.want("the other link has failed", true)
}

// One of two nodes returns, and is not heard yet. The other node does not count its own link as silent.
func TestLinkOfTheOther(t *testing.T) {
	n := newSecondNetwork(t, true)
	n.pass(time.Minute)
	n.setOthers(true)
	n.forward(false)
	n.pass(30 * time.Second)
	n.want("the other link returned and does not answer", true)
	n.setOthers(false)
	n.pass(time.Second)
	n.want("the other link works and does not answer", false)

	n = newSecondNetwork(t, true)
	n.lan.foreign = []lb.Question{{Link: "eth1", MAC: mac(99), Address: netip.MustParseAddr("198.51.100.254")}}
	n.lan.answers[mac(99)] = 3
	n.pass(time.Minute)
	n.setOthers(true)
	n.forward(false)
	n.pass(time.Minute)
	n.want("a foreign machine answers", true)
	n.lan.answers[mac(99)] = 0
	n.pass(time.Second)
	n.want("nor does it any more", false)
}

// A new address of IPv6 is tentative for a second or two after the return of its link, which has no subnet meanwhile.
func TestLinkReturnsWithoutSubnet(t *testing.T) {
	n := newSecondNetwork(t, true)
	n.pass(time.Minute)
	prefixes := n.eth1().Prefixes
	n.eth1().Prefixes = nil
	n.forward(false)
	n.flap()
	n.pass(2 * time.Second)
	n.want("tentative", false)
	n.eth1().Prefixes = prefixes
	n.want("not tentative any more", false)
	n.pass(30 * time.Second)
	n.want("blocked", false)
}

// A port with a carrier that comes and goes all the time costs one change of this node, and none of the others.
func TestLinkToggles(t *testing.T) {
	n := newSecondNetwork(t, true)
	n.pass(time.Minute)
	for range 10_000 {
		n.eth1().CarrierChanges++
		n.eth1().Up = !n.eth1().Up
		n.time = n.time.Add(20 * time.Millisecond)
		if n.announces() {
			t.Fatal("a link that toggles is used")
		}
	}
	n.eth1().Up = true
	n.pass(time.Second)
	n.wantHeld("it was one loss", linkHoldTime-time.Second)
}

// A Problem reports why a link is left to other nodes: first that no machine answers, and then how long that lasts.
func TestLinkProblems(t *testing.T) {
	n := newSecondNetwork(t, true)
	m := New(n.linkWatcher.config)
	m.links = n.linkWatcher
	expectProblem := func(what, want string) {
		t.Helper()
		got := ""
		for _, p := range m.State().Problems {
			got += string(p.Reason) + ": " + p.Message
		}
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	n.pass(time.Minute)
	expectProblem("at rest", "")
	n.setUp(false)
	n.pass(time.Second)
	expectProblem("a link without carrier is no silent one", "")
	n.setUp(true)
	n.forward(false)
	expectProblem("blocked",
		"LinkSilent: node w1 receives no answers on eth1 although the link is up; other nodes announce there")
	n.forward(true)
	before := n.changes
	n.pass(linkInterval)
	expectProblem("forwards",
		"LinkSilent: node w1 leaves links that returned to other nodes until machines have answered there "+
			"for the time in brackets: eth1 (10s)")
	if n.changes == before {
		t.Error("the new text is not published")
	}
	n.pass(linkHoldTime + time.Second)
	expectProblem("works", "")
}

// A cable is pulled and put back, and the switch port is blocked at first, with real links and both families.
func TestCablePulled(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, address := range []string{"198.51.100.%d/24", "2001:db8:1::%d/64"} {
			t.Run(address, func(t *testing.T) { testCablePulled(t, address) })
		}
	})
}

func testCablePulled(t *testing.T, address string) {
	const within = 30 * time.Second
	self, other, bridge := nstest.Self(t), nstest.New(t), nstest.New(t)
	nstest.Veth(t, self, "eth0", bridge, "port0")
	nstest.Veth(t, other, "eth0", bridge, "port1")
	t.Cleanup(func() { self.Delete("eth0") })
	bridge.Bridge("br0", "port0", "port1")
	// With duplicate address detection, as on a real node.
	self.Output("ip", "address", "add", fmt.Sprintf(address, 1), "dev", "eth0")
	other.AddAddress("eth0", fmt.Sprintf(address, 2))
	prefix := netip.MustParsePrefix(fmt.Sprintf(address, 2))
	there := prefix.Addr()
	if there.Is6() {
		other.AddAddress("eth0", "fe80::2/64")
		there = netip.MustParseAddr("fe80::2")
	}

	monitor := link.New(quiet, func() {})
	nstest.Running(t, monitor.Run)
	eth0 := func() (out lb.Interface) {
		for _, l := range monitor.Links() {
			if l.Name == "eth0" {
				out = l
			}
		}
		return out
	}
	hasSubnet := func() bool {
		return slices.ContainsFunc(eth0().Prefixes, func(p netip.Prefix) bool { return p.Masked() == prefix.Masked() })
	}
	nstest.Until(t, within, "the link and its subnet", func() bool { return eth0().CanAnnounce() && hasSubnet() })

	members := map[string]lb.Member{"w2": {Links: []lb.Link{{
		Name: "eth0", MAC: lb.MACFrom(other.MAC("eth0")),
		Prefixes: []netip.Prefix{prefix.Masked()}, Addresses: []netip.Addr{there},
	}}}}
	asker := responderOn(monitor.Links)
	at := time.Now()
	w := newLinkWatcher(Config{Log: quiet, Node: node("w1"), Asker: asker, Links: monitor.Links, Changed: func() {}},
		known(members, living(members), netip.MustParseAddr("203.0.113.1")), func() time.Time { return at })
	answers := func() bool {
		w.askRound(t.Context())
		return w.watched["eth0"].hasAnswered
	}
	nstest.Until(t, within, "an answer", answers)
	if w.Silent()["eth0"] {
		t.Error("silent at its start")
	}

	bridge.SetDown("port0")
	nstest.Until(t, within, "no carrier", func() bool { return !eth0().Up })
	bridge.Output("nft", "add table bridge stp; "+
		"add chain bridge stp forward { type filter hook forward priority 0; policy drop; }")
	bridge.SetUp("port0")
	nstest.Until(t, within, "a carrier", func() bool {
		if eth0().Up && !w.Silent()["eth0"] {
			t.Fatal("not silent as soon as it is up")
		}
		return eth0().Up
	})
	nstest.Until(t, within, "the subnet", hasSubnet)
	for range 5 {
		w.askRound(t.Context())
		at = at.Add(linkInterval)
	}
	if !w.Silent()["eth0"] {
		t.Error("not silent while the port is blocked")
	}

	bridge.Output("nft", "delete table bridge stp")
	nstest.Until(t, within, "an answer", answers)
	at = at.Add(linkHoldTime)
	nstest.Until(t, within, "the end of the wait", func() bool { return answers() && !w.Silent()["eth0"] })

	// Faster than the links are read.
	changes := eth0().CarrierChanges
	bridge.SetDown("port0")
	bridge.SetUp("port0")
	nstest.Until(t, within, "another carrier", func() bool { return eth0().CarrierChanges > changes })
	if !w.Silent()["eth0"] {
		t.Error("a short loss of the carrier is not noticed")
	}
}

// TestForeignOfALinkIsKept: a foreign machine on a second network is asked from time to time, though speakers answer
// there: when the only other node falls silent, it shows whose link fails.
func TestForeignOfALinkIsKept(t *testing.T) {
	n := newSecondNetwork(t, true)
	delete(n.members, "w3")
	router := lb.Question{Link: "eth1", MAC: mac(99), Address: netip.MustParseAddr("198.51.100.254")}
	n.lan.foreign = []lb.Question{router}
	n.lan.answers[mac(99)] = 3
	n.pass(10 * time.Minute)
	asked := 0
	for _, q := range n.lan.asked {
		if q == router {
			asked++
		}
	}
	if asked < 50 || asked > 70 {
		t.Errorf("asked %d times in ten minutes, want every ten seconds", asked)
	}
	n.forward(false)
	n.pass(time.Minute)
	n.want("the router answers", true)
}

// TestShared: two links may be on one network if both have an address in a subnet of it, however they got that, or if
// both have none and the same name.
func TestShared(t *testing.T) {
	for _, tt := range []struct {
		name         string
		ours, theirs []string
		sameName     bool
		want         bool
	}{
		{"one subnet", []string{"192.0.2.1/24"}, []string{"192.0.2.0/24"}, false, true},
		{"two subnets", []string{"192.0.2.1/24"}, []string{"198.51.100.0/24"}, true, false},
		{"one of several", []string{"192.0.2.1/24", "2001:db8::1/64"}, []string{"198.51.100.0/24", "2001:db8::/64"}, false,
			true},
		{"other lengths", []string{"192.0.2.1/24"}, []string{"192.0.2.0/25"}, true, false},
		{"DHCPv6", []string{"2001:db8::1/128", "fe80::1/64"}, []string{"2001:db8::2/128"}, false, true},
		{"DHCPv6 and a router's advertisement", []string{"2001:db8::1/64"}, []string{"2001:db8::2/128"}, false, true},
		{"DHCPv6, two subnets", []string{"2001:db8::1/128"}, []string{"2001:db8:0:1::2/128"}, true, false},
		{"IPv4, one host each", []string{"192.0.2.1/32"}, []string{"192.0.2.2/32"}, true, false},
		{"a VLAN without addresses", []string{"fe80::1/64"}, nil, true, true},
		{"another one", []string{"fe80::1/64"}, nil, false, false},
		{"without an address here", []string{"fe80::1/64"}, []string{"192.0.2.0/24"}, true, false},
		{"without an address there", []string{"192.0.2.1/24"}, nil, true, false},
	} {
		ours, theirs := lb.Interface{Name: "vlan50", Prefixes: prefixes(tt.ours...)}, lb.Link{
			Name: "eth1", Prefixes: prefixes(tt.theirs...),
		}
		if tt.sameName {
			theirs.Name = ours.Name
		}
		if got := sharesNetwork(ours, theirs); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}

// TestLinkWithoutAddresses: the port of a VLAN dies on which nodes have no address of their own.
func TestLinkWithoutAddresses(t *testing.T) {
	n := newSecondNetwork(t, true)
	n.members = neighbours()
	for name := range n.members {
		for i := range n.members[name].Links {
			if l := &n.members[name].Links[i]; l.Name == "fabric" || l.Name == "eth1" {
				l.Name, l.Prefixes, l.Addresses = "eth1", nil, []netip.Addr{netip.MustParseAddr("fe80::2")}
			}
		}
	}
	n.eth1().Prefixes = prefixes("fe80::11/64")
	n.pass(time.Minute)
	n.want("the other node answers", true)
	n.forward(false)
	n.pass(2 * time.Second)
	n.want("its port is dead", false)
}
