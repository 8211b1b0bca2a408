package liveness

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// hear sets what frames show on eth1: this node's end, and what it knows of w2 there.
func (n *secondNetwork) hear(state detect.LinkState, w2 detect.Status) {
	n.frames = detect.LinkView{
		Link: "eth1", State: state, Peers: []detect.LinkPeer{{Name: "w2", MAC: mac(12), Status: w2}},
	}
}

// addThird adds a third node on the second network, whose machine does not answer.
func (n *secondNetwork) addThird() {
	third := n.members["w2"].Links[1]
	third.MAC, third.Addresses = mac(14), []netip.Addr{netip.MustParseAddr("198.51.100.4")}
	n.members["w4"] = lb.Member{Links: []lb.Link{third}}
}

// While frames are heard machines that never answered are hardly asked. When they stop, two rounds without an answer
// are enough, one soon after the other. Rounds in the same blip count as one.
func TestFramesStop(t *testing.T) {
	n := newSecondNetwork(t, true)
	n.addThird()
	n.hear(detect.LinkWorks, detect.Alive)
	n.forward(false)
	n.pass(time.Minute)
	n.want("frames are heard", true)
	if rounds := len(n.lan.asked); rounds > 2*maxNeighboursAsked {
		t.Errorf("machines are asked %d times: %v", rounds, n.lan.asked)
	}

	n.hear(detect.LinkFails, detect.Alive)
	for range 10 {
		n.askRound(t.Context())
		n.time = n.time.Add(10 * time.Millisecond)
	}
	n.want("a blip", true)
	n.hear(detect.LinkWorks, detect.Alive)
	n.askRound(t.Context())
	if n.interval() != linkInterval {
		t.Errorf("the next round is after %v", n.interval())
	}

	n.hear(detect.LinkFails, detect.Alive)
	n.askRound(t.Context())
	n.want("one round", true)
	if n.interval() != failingInterval {
		t.Errorf("the next round is after %v", n.interval())
	}
	n.time = n.time.Add(n.interval())
	n.askRound(t.Context())
	n.want("neither frames nor answers", false)
	if n.interval() != linkInterval {
		t.Errorf("the next round is after %v, though the link is left", n.interval())
	}
	n.hear(detect.LinkWorks, detect.Alive)
	n.wantHeld("frames are heard again", linkHoldTime)
}

// A fabric that drops frames and nothing else is no fault of this node's link, and is reported.
func TestFramesAreDropped(t *testing.T) {
	n := newSecondNetwork(t, true)
	n.hear(detect.LinkWorks, detect.Alive)
	n.pass(time.Minute)
	n.hear(detect.LinkFails, detect.Alive)
	n.pass(linkHoldTime - linkInterval)
	n.wantProblem("for a moment", lb.EchoBlocked, false)
	n.pass(time.Minute)
	n.want("machines answer", true)
	n.wantProblem("for long", lb.EchoBlocked, true)
	n.hear(detect.LinkWorks, detect.Alive)
	n.pass(linkInterval)
	n.wantProblem("frames are back", lb.EchoBlocked, false)
}

// Frames pass, and ARP and Neighbor Discovery are filtered at this node's port: clients do not find it, so it leaves
// the link to others until machines answer again. Where they never answered that shows nothing.
func TestFramesPassAlone(t *testing.T) {
	for _, everAnswered := range []bool{true, false} {
		n := newSecondNetwork(t, true)
		n.addThird()
		n.hear(detect.LinkWorks, detect.Alive)
		n.forward(everAnswered)
		n.pass(time.Minute)
		n.want("frames pass", true)
		asked := len(n.lan.asked)
		n.pass(time.Minute)
		if seldom := int(time.Minute/machineInterval) + 1; len(n.lan.asked)-asked > seldom {
			t.Errorf("%d questions in a minute, want %d at most", len(n.lan.asked)-asked, seldom)
		}

		n.forward(false)
		n.pass(machineInterval + 2*linkInterval)
		n.want("no machine answers", !everAnswered)
		n.wantProblem("no machine answers", lb.LinkSilent, everAnswered)
		if everAnswered {
			n.pass(time.Minute)
			n.want("no machine answers for long", false)
			n.forward(true)
			n.wantHeld("machines answer again", linkHoldTime)
		}
	}
}

// wantProblem expects that a problem is reported, or not.
func (n *secondNetwork) wantProblem(what string, reason lb.Reason, want bool) {
	n.t.Helper()
	problems := networkProblems(n.config, nil, nil, "", n.findings())
	isReported := slices.ContainsFunc(problems, func(p lb.Problem) bool { return p.Reason == reason })
	if isReported != want {
		n.t.Errorf("%s: %s is reported %t, want %t: %v", what, reason, isReported, want, problems)
	}
}

// Where nothing shows which side fell silent, machines decide as they do without frames.
func TestFramesShowNothing(t *testing.T) {
	n := newSecondNetwork(t, true)
	n.addThird()
	n.hear(detect.LinkWorks, detect.Alive)
	n.pass(time.Minute)
	n.forward(false)
	n.hear(detect.LinkUnknown, detect.Alive)
	n.pass(linkInterval)
	n.want("after one round", true)
	n.pass(linkInterval)
	n.want("after two rounds", false)
}

// Of two nodes on a link neither shows which side fell silent. A foreign machine that was there does.
func TestFramesOfTwo(t *testing.T) {
	for _, state := range []detect.LinkState{detect.LinkUnknown, detect.LinkFails} {
		n := newSecondNetwork(t, true)
		n.hear(detect.LinkWorks, detect.Alive)
		n.pass(time.Minute)
		n.forward(false)
		n.hear(state, detect.Alive)
		n.pass(time.Minute)
		n.want("nothing shows which side it is", true)
		n.lan.foreign = []lb.Question{{Link: "eth1", MAC: mac(99), Address: netip.MustParseAddr("198.51.100.254")}}
		n.lan.answers[mac(99)] = 3
		n.pass(time.Minute)
		n.want("a foreign machine answers", true)
		n.lan.answers[mac(99)] = 0
		n.pass(time.Second)
		n.want("it does not answer any more", false)
	}
}

// Frames judge a link on which nodes have no addresses, and which has another name on each: no machine can be asked
// there.
func TestFramesWithoutAddresses(t *testing.T) {
	n := newSecondNetwork(t, true)
	n.eth1().Prefixes = nil
	n.members["w2"].Links[1].Prefixes, n.members["w2"].Links[1].Addresses = nil, nil
	n.addThird()
	n.members["w4"].Links[0].Name, n.members["w4"].Links[0].Addresses = "eth1", nil
	n.pass(time.Minute)
	n.forward(false)
	n.pass(time.Minute)
	n.want("no frame ever came", true)

	n.hear(detect.LinkWorks, detect.Alive)
	n.pass(time.Minute)
	n.hear(detect.LinkFails, detect.Alive)
	n.pass(2 * linkInterval)
	n.want("frames stop", false)
	n.hear(detect.LinkWorks, detect.Alive)
	n.pass(5 * time.Second)
	n.want("the other nodes' links work", false)
	n.members["w4"].Links[0].Silent = true
	n.pass(linkInterval)
	n.want("the link works of a node that only frames show there", false)
	n.members["w2"].Links[1].Silent = true
	n.pass(linkInterval)
	n.want("the others leave the link too", true)
}

// A dead link that only frames judge stays left to others after its Detector restarted: it knows no node there, until
// the port works again.
func TestFramesBeginAnew(t *testing.T) {
	for _, flaps := range []bool{false, true} {
		n := newSecondNetwork(t, true)
		n.eth1().Prefixes = nil
		n.members["w2"].Links[1].Prefixes, n.members["w2"].Links[1].Addresses = nil, nil
		n.addThird()
		third := &n.members["w4"].Links[0]
		third.Name, third.Prefixes, third.Addresses = "eth1", nil, nil
		n.hear(detect.LinkWorks, detect.Alive)
		n.pass(time.Minute)
		n.frames = detect.LinkView{Link: "eth1"}
		n.pass(time.Minute)
		n.want("nothing shows that it fails", true)

		n.hear(detect.LinkFails, detect.Alive)
		n.pass(time.Second)
		n.want("frames stop", false)
		n.frames = detect.LinkView{Link: "eth1"}
		if flaps {
			n.flap()
		}
		n.pass(20 * time.Minute)
		n.want("it is still dead", false)
		n.hear(detect.LinkWorks, detect.Alive)
		n.wantHeld("frames are heard again", linkHoldTime)

		n.hear(detect.LinkFails, detect.Alive)
		n.pass(time.Second)
		n.frames = detect.LinkView{Link: "eth1"}
		n.want("frames stop again", false)
		maps.DeleteFunc(n.members, func(name string, _ lb.Member) bool { return name != "w1" })
		n.pass(linkHoldTime)
		n.want("no other node is left", true)
	}
}

// Two groups that hear their own and not each other are reported after a while, unless one of them leaves the link.
func TestLinkDivided(t *testing.T) {
	n := newSecondNetwork(t, true)
	divided := func(what string, want bool) {
		t.Helper()
		n.askRound(t.Context())
		n.wantProblem(what, lb.LinkDivided, want)
	}

	n.hear(detect.LinkWorks, detect.Alive)
	n.pass(time.Minute)
	divided("all hear each other", false)
	n.hear(detect.LinkWorks, detect.Dead)
	n.pass(linkHoldTime - linkInterval)
	divided("for a moment", false)
	n.pass(2 * linkInterval)
	divided("for long", true)
	n.setOthers(true)
	divided("the other node leaves the link", false)
	n.setOthers(false)
	n.hear(detect.LinkWorks, detect.Alive)
	divided("healed", false)
}

// VLANs share the MAC of their port. What a node reports of one of them is not so for another one.
func TestFramesOfVLANs(t *testing.T) {
	for name, tt := range map[string]struct {
		own    []netip.Prefix
		theirs []lb.Link
		want   int
	}{
		"only one link": {prefixes("198.51.100.1/24"), []lb.Link{{}}, 1},
		"it is silent":  {prefixes("198.51.100.1/24"), []lb.Link{{Silent: true}}, 0},
		"the other VLAN works": {prefixes("198.51.100.1/24"),
			[]lb.Link{{Prefixes: prefixes("198.51.100.0/24"), Silent: true}, {Prefixes: prefixes("203.0.113.0/24")}}, 0},
		"this VLAN works": {prefixes("198.51.100.1/24"),
			[]lb.Link{{Prefixes: prefixes("198.51.100.0/24")}, {Prefixes: prefixes("203.0.113.0/24"), Silent: true}}, 1},
		"without subnets":              {nil, []lb.Link{{Prefixes: prefixes("203.0.113.0/24"), Silent: true}, {}}, 1},
		"without subnets it is silent": {nil, []lb.Link{{Prefixes: prefixes("203.0.113.0/24")}, {Silent: true}}, 0},
	} {
		n := newSecondNetwork(t, true)
		n.hear(detect.LinkWorks, detect.Dead)
		n.eth1().Prefixes = tt.own
		for i := range tt.theirs {
			tt.theirs[i].Name, tt.theirs[i].MAC = "bond", mac(12)
		}
		n.members["w2"] = lb.Member{Links: tt.theirs}
		if got := n.countOthers(*n.eth1(), n.lastKnown()); got != tt.want {
			t.Errorf("%s: %d others, want %d", name, got, tt.want)
		}
		if got := dividedFrom(*n.eth1(), n.lastKnown()); len(got) != tt.want {
			t.Errorf("%s: divided from %v, want %d", name, got, tt.want)
		}
	}
}

// What frames show is looked at when it changes, not with the next round.
func TestFramesKick(t *testing.T) {
	n := newSecondNetwork(t, true)
	asked := make(chan bool, 1)
	m := newMonitor(Config{
		Log: quiet, Node: node("w1"), Links: func() []lb.Interface { return n.present }, Changed: func() {},
		SilenceChanged: func() {}, KickProbe: func() {}, Asker: askerFunc(func() {
			select {
			case asked <- true:
			default:
			}
		}),
	}, time.Now)
	m.links.isIdle.Store(true)
	k := known(n.members, living(n.members), netip.MustParseAddr("192.0.2.1"))()
	k.View.Links = []detect.LinkView{{Link: "eth1", State: detect.LinkWorks}}
	m.Set(k)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- m.links.Run(ctx) }()

	nstest.Until(t, 10*time.Second, "a round that hears frames", func() bool {
		return m.links.watchedLink("eth1").hasAnswered
	})
	k.View.Links = []detect.LinkView{{Link: "eth1", State: detect.LinkFails}}
	m.Set(k)
	select {
	case <-asked:
	case <-time.After(idleRounds * linkInterval / 2):
		t.Error("no machine is asked, though no frame comes any more")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// askerFunc is an Asker without answers, which tells that it was asked.
type askerFunc func()

func (f askerFunc) Ask(_ context.Context, questions []lb.Question, _ time.Duration) []int {
	f()
	return make([]int, len(questions))
}

func (askerFunc) Foreign(string, int) []lb.Question { return nil }
