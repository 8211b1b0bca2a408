package owners

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/members"
	"github.com/holdfast-lb/holdfast/internal/node/facts"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// fakeResponder hands some addresses over, offers some, and owns others.
type fakeResponder struct{ handing, offered, owns []netip.Addr }

func (f *fakeResponder) HandingOver() []netip.Addr { return slices.Clone(f.handing) }

func (f *fakeResponder) Offered() []netip.Addr { return slices.Clone(f.offered) }

func (f *fakeResponder) Owns(addrs []netip.Addr, _ bool) (out []bool) {
	for _, a := range addrs {
		out = append(out, slices.Contains(f.owns, a))
	}
	return out
}

func (f *fakeResponder) EndHandovers(addrs []netip.Addr) {
	owned := map[netip.Addr]bool{}
	for _, a := range addrs {
		owned[a] = true
	}
	f.handing = slices.DeleteFunc(f.handing, func(a netip.Addr) bool { return owned[a] })
	f.offered = slices.DeleteFunc(f.offered, func(a netip.Addr) bool { return owned[a] })
}

// fakePeers are other speakers.
type fakePeers struct {
	onAsk   func(member string, addrs []netip.Addr, leaves bool)
	members func() map[string]lb.Member
}

func (f fakePeers) Ask(member string, addrs []netip.Addr, leaves bool) {
	f.onAsk(member, addrs, leaves)
}

func (f fakePeers) Alive() map[string]lb.Member { return f.members() }

// addressNumber returns one of many addresses.
func addressNumber(n int) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 0x0a000000|uint32(n))))
}

// TestLeavesToOwner hands over thousands of addresses. Each of them stays until its new owner answers that it has the
// address, and the node asks about all of them in turn.
func TestLeavesToOwner(t *testing.T) {
	const count = 5*maxAsked + 7
	to := map[netip.Addr]string{}
	from := &fakeResponder{}
	for i := range count {
		a := addressNumber(i)
		from.handing, to[a] = append(from.handing, a), "b"
	}
	to[addressNumber(0)] = "c"
	asked := map[string][]netip.Addr{}
	o := New(Config{
		Layer2: from,
		Plan:   func() plan.Plan { return plan.Plan{Owners: lb.MapOf(to)} },
		Age:    func() time.Duration { return 0 },
	})
	o.config.Peers = fakePeers{onAsk: func(member string, addrs []netip.Addr, leaves bool) {
		if len(addrs) > maxAsked || !leaves {
			t.Errorf("%s is asked about %d addresses, leaves: %v", member, len(addrs), leaves)
		}
		asked[member] = append(asked[member], addrs...)
		owns := make([]bool, len(addrs))
		for i, a := range addrs {
			owns[i] = a == addressNumber(count-1)
		}
		o.Answered(members.Answer{From: member, Addresses: addrs, Leaves: leaves, Owns: owns})
	}}
	for range 14 {
		o.turns++
		o.askNewOwners()
	}
	if c := asked["c"]; len(c) != 14 || c[0] != addressNumber(0) {
		t.Errorf("c is asked about %v", c)
	}
	b := asked["b"]
	slices.SortFunc(b, netip.Addr.Compare)
	all := slices.Compact(b)
	if len(all) != count-1 || len(from.handing) != count-1 || slices.Contains(from.handing, addressNumber(count-1)) {
		t.Errorf("of %d addresses b was asked about %d, and %d are still handed over", count, len(all), len(from.handing))
	}
}

// TestOfferedToAll has a plan loop hang: the node learns from the membership too which node took over an offered
// address.
func TestOfferedToAll(t *testing.T) {
	a, b := addressNumber(1), addressNumber(2)
	from := &fakeResponder{offered: []netip.Addr{a, b}}
	announced := plan.Plan{
		Announcements: lb.MapOf(map[netip.Addr]*lb.Announcement{a: {Address: a}, b: {Address: b}}),
		Owners:        lb.MapOf(map[netip.Addr]string{a: "w1", b: "w1"}),
	}
	o := New(Config{
		Node: "w1", Layer2: from, Plan: func() plan.Plan { return announced }, Age: func() time.Duration { return 0 },
		Changed: func() {}, Wire: &countingWire{},
	})
	all := func() map[string]lb.Member {
		return map[string]lb.Member{"w1": {API: lb.APIHeard}, "w2": {API: lb.APIHeard}, "w3": {API: lb.APIHeard}}
	}
	var asked []string
	ask := func(member string, addrs []netip.Addr, leaves bool) {
		asked = append(asked, member)
		o.Answered(members.Answer{From: member, Addresses: addrs, Leaves: leaves, Owns: []bool{member == "w3", false}})
	}
	o.config.Peers = fakePeers{ask, all}
	_, _ = o.turn(t.Context())
	slices.Sort(asked)
	if !slices.Equal(asked, []string{"w2", "w3"}) || !slices.Equal(from.offered, []netip.Addr{b}) || len(o.newer) > 0 {
		t.Errorf("asked are %v, still offered are %v, newer owners are %v", asked, from.offered, o.newer)
	}
}

// simAddresses is how many Services with an address each simulated cluster has.
const simAddresses = 12

// sim is speakers that hear each other, with the real plans and questions; the test decides who hears the API server.
type sim struct {
	t     *testing.T
	start time.Time
	spec  lb.State
	nodes map[string]*simNode
	// owner is who owned each address last; moves counts the changes, and double is how long each has had two that
	// answer.
	owner  map[netip.Addr]string
	moves  map[netip.Addr]int
	double map[netip.Addr]time.Duration
	// held are the nodes that are held down. deaf reports that the questions of the membership get lost.
	held map[string]bool
	deaf bool
}

type simNode struct {
	*Inquirer
	fakeResponder
	*simWire
	older bool
	// due is when its next turn is.
	due time.Time
	// view changes what this node knows of the others; nil for nothing.
	view func(*lb.State)
	// spec is what it read last, and lost since when it does not hear the API server, zero if it does; hangs: that one
	// hangs.
	spec  lb.State
	lost  time.Time
	hangs bool
	last  plan.Plan
	stale bool
}

// specOf has these nodes, which live, and the Services.
func specOf(names ...string) lb.State {
	s := lb.State{
		Nodes: map[string]lb.Node{}, Members: map[string]bool{}, L2Advertisements: []lb.L2Advertisement{{Name: "l2"}},
		Pools: []lb.Pool{{Name: "lan", Ranges: []lb.Range{{From: addressNumber(0), To: addressNumber(255)}}}},
	}
	for _, name := range names {
		s.Nodes[name], s.Members[name] = lb.Node{Name: name}, true
	}
	for i := range simAddresses {
		s.Services = append(s.Services, &lb.Service{
			Key: lb.Key{Namespace: "default", Name: fmt.Sprint(i)}, Addresses: []netip.Addr{addressNumber(i)},
			Backends: servedOn("w1"),
		})
	}
	return s
}

func newSim(t *testing.T, names ...string) *sim {
	s := &sim{
		t: t, start: time.Now(), nodes: map[string]*simNode{}, owner: map[netip.Addr]string{},
		moves: map[netip.Addr]int{}, double: map[netip.Addr]time.Duration{}, spec: specOf(names...),
	}
	for _, name := range names {
		n := &simNode{stale: true}
		n.simWire = &simWire{sim: s, node: n, claims: map[lb.Question]time.Time{}}
		n.Inquirer = New(Config{
			Node: name, Log: slog.New(slog.DiscardHandler), Layer2: &n.fakeResponder, Wire: n.simWire,
			Peers: fakePeers{
				func(member string, addrs []netip.Addr, leaves bool) { s.ask(name, member, addrs, leaves) }, s.metadata,
			},
			Plan: func() plan.Plan { return n.last }, Age: n.heard, Changed: func() { n.stale = true },
		})
		s.nodes[name] = n
	}
	s.change(func(*lb.State) {})
	s.run(5 * time.Second)
	clear(s.moves)
	clear(s.double)
	return s
}

// heard returns how long ago the node heard the API server. While that hangs, its kernel acknowledges until client-go
// asks.
func (n *simNode) heard() time.Duration {
	away := time.Since(n.lost)
	if n.lost.IsZero() || n.hangs && away < 35*time.Second {
		return time.Second
	}
	return away
}

func (s *sim) metadata() map[string]lb.Member {
	out := map[string]lb.Member{}
	for name, n := range s.nodes {
		out[name] = lb.Member{API: n.contact.API(), Links: []lb.Link{{Name: "eth1", MAC: simMAC(name)}}}
	}
	return out
}

func (s *sim) ask(from, member string, addrs []netip.Addr, leaves bool) {
	if n := s.nodes[member]; !n.older && !s.deaf {
		owns, age := n.Inquirer.Owns(addrs, leaves)
		s.nodes[from].Answered(members.Answer{From: member, Addresses: addrs, Leaves: leaves, Owns: owns, Age: age})
	}
}

// change changes the spec, and every node that hears the API server reads it.
func (s *sim) change(what func(*lb.State)) {
	spec := s.spec
	spec.Nodes = maps.Clone(spec.Nodes)
	what(&spec)
	s.spec = spec
	for _, n := range s.nodes {
		if n.lost.IsZero() {
			n.spec, n.stale = spec, true
		}
	}
}

// run lets time pass.
func (s *sim) run(d time.Duration) {
	s.t.Helper()
	for range int(d / askInterval) {
		for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
			n := s.nodes[name]
			before := n.contact.API()
			if !n.older && !time.Now().Before(n.due) {
				again, _ := n.turn(s.t.Context())
				n.due = time.Now().Add(again)
			}
			if before != n.contact.API() {
				for _, other := range s.nodes {
					other.stale = true
				}
			}
		}
		for name, n := range s.nodes {
			if n.stale {
				s.plan(name, n)
			}
		}
		s.look()
		time.Sleep(askInterval)
	}
}

// plan carries a new plan of a node out, as layer2 does.
func (s *sim) plan(name string, n *simNode) {
	n.stale, n.due = false, time.Time{}
	state := n.spec
	state.Members = map[string]bool{}
	for name := range s.nodes {
		state.Members[name] = true
	}
	facts.NewSpeakers(s.metadata(), nil).Apply(&state)
	state.Links = nil
	maps.Copy(state.HeldDown, s.held)
	if n.view != nil {
		n.view(&state)
	}
	n.heldDown.Store(state.HeldDown[name])
	state.Here.Newer = n.Newer()
	state.Here.Previous = &lb.Previous{Owners: n.last.Owners}
	n.last = plan.ForNode(name, state)
	before := n.owns
	answered := slices.Concat(n.owns, n.handing)
	n.owns, n.handing = nil, nil
	n.owns = slices.AppendSeq(n.owns, n.last.Announcements.Keys())
	hadBefore := func(a netip.Addr) bool { return slices.Contains(before, a) }
	s.announce(name, slices.DeleteFunc(slices.Clone(n.owns), hadBefore))
	for _, a := range answered {
		if n.last.Yield.Has(a) {
			n.handing = append(n.handing, a)
		}
	}
}

// look counts who owns what.
func (s *sim) look() {
	s.t.Helper()
	for i := range simAddresses {
		a := addressNumber(i)
		var owns []string
		answers := 0
		for name, n := range s.nodes {
			if slices.Contains(n.owns, a) {
				owns = append(owns, name)
			}
			if slices.Contains(n.owns, a) || slices.Contains(n.handing, a) {
				answers++
			}
		}
		if answers == 0 {
			s.t.Errorf("after %v no node answers for %s", time.Since(s.start), a)
		}
		if answers > 1 {
			s.double[a] += askInterval
		}
		if len(owns) == 1 && owns[0] != s.owner[a] {
			s.owner[a] = owns[0]
			s.moves[a]++
		}
	}
}

// most returns the highest number of moves of an address, and the longest time with two that answer.
func (s *sim) worst() (moves int, double time.Duration) {
	for _, n := range s.moves {
		moves = max(moves, n)
	}
	for _, d := range s.double {
		double = max(double, d)
	}
	return moves, double
}

func (s *sim) ownedBy(name string) (out int) {
	for _, owner := range s.owner {
		if owner == name {
			out++
		}
	}
	return out
}

// do carries out steps, which semicolons separate: times pass; nodes lose and find the API server, are excluded,
// admitted or drained; an older speaker says nothing of it.
func (s *sim) do(steps string) {
	s.t.Helper()
	for step := range strings.SplitSeq(steps, ";") {
		words := strings.Fields(step)
		if d, err := time.ParseDuration(words[0]); err == nil {
			s.run(d)
			continue
		}
		for _, name := range words[1:] {
			node := lb.Node{Name: name}
			switch words[0] {
			case "lose":
				s.nodes[name].lost = time.Now()
			case "hang":
				s.nodes[name].hangs, s.nodes[name].lost = true, time.Now()
			case "find":
				n := s.nodes[name]
				n.lost, n.spec, n.stale = time.Time{}, s.spec, true
			case "older":
				s.nodes[name].older = true
				s.nodes[name].contact.state.Store(uint32(lb.APIUnknown))
			default:
				node.Excluded, node.Draining = words[0] == "exclude", words[0] == "drain"
				s.change(func(spec *lb.State) { spec.Nodes[name] = node })
			}
		}
	}
}

// TestAwayFromAPI runs histories of speakers that hear each other, while some of them do not hear the API server. No
// speaker stops to answer before another one answers.
//
// Trap: a node that was excluded does not know, and stays a second owner for good.
func TestAwayFromAPI(t *testing.T) {
	for _, tt := range []struct {
		name  string
		nodes int
		steps string
		// moves is how often an address may move, double how long two may answer for it; left: w1 owns nothing in the
		// end.
		moves  int
		double time.Duration
		left   bool
	}{
		{"one is away, and nothing changes", 3, "lose w1; 10m", 1, time.Second, true},
		{"it is away for less than the time", 3, "lose w1; 33s; find w1; 1m", 0, 0, false},
		{"it comes back", 3, "lose w1; 1m; find w1; 10m", 2, 2 * time.Second, false},
		{"excluded at once", 3, "lose w1; exclude w1; 30s", 1, 9 * time.Second, true},
		{"excluded later", 3, "lose w1; 20s; exclude w1; 1m", 1, 2 * time.Second, true},
		{"excluded, and the API server hangs", 3, "hang w1; exclude w1; 1m", 1, 38 * time.Second, true},
		{"excluded, away and back", 3, "lose w1; exclude w1; 20s; find w1; 1m", 1, 9 * time.Second, true},
		{"excluded and admitted again while away", 3, "lose w1; exclude w1; 20s; admit w1; 1m", 3, 9 * time.Second, true},
		{"the other one is away too, later", 2, "lose w1; exclude w1; 20s; lose w2; 10m", 1, 9 * time.Second, true},
		{"the newer owner is drained", 3, "lose w1; exclude w1; 20s; drain w2; 1m", 2, 9 * time.Second, true},
		{"1 of 2", 2, "lose w1; 10m", 1, time.Second, true},
		{"2 of 4", 4, "lose w1 w2; 10m", 1, time.Second, true},
		{"3 of 4", 4, "lose w1 w2 w3; 10m", 0, 0, false},
		{"3 of 4, and one of them is excluded", 4, "lose w1 w2 w3; exclude w1; 10m", 1, 9 * time.Second, false},
		{
			"all at once, back within half a minute",
			4, "lose w1 w2 w3 w4; 10m; find w1; 8s; find w2; 8s; find w3; 8s; find w4; 10m", 0, 0, false,
		},
		{
			"all, within 60 s of each other",
			4, "lose w1; 20s; lose w2; 20s; lose w3; 20s; lose w4; 10m", 2, 2 * time.Second, false,
		},
		{"on and off every 15 s", 3, strings.Repeat("lose w1; 15s; find w1; 15s;", 20) + "0s", 0, 0, false},
		{"on and off every minute", 3, strings.Repeat("lose w1; 1m; find w1; 1m;", 30) + "0s", 1, 3 * time.Second, true},
		{"an older speaker owns", 3, "older w1; lose w1; 10m", 0, 0, false},
		// for what the older one owns
		{"excluded, and one of the others is older", 3, "older w2; lose w1; exclude w1; 1m", 1, time.Minute, false},
		{"older speakers are half of the others", 3, "older w3; lose w1; 10m", 0, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, []string{"w1", "w2", "w3", "w4"}[:tt.nodes]...)
				if s.ownedBy("w1") == 0 {
					t.Fatal("w1 owns nothing, so nothing is tested")
				}
				s.do(tt.steps)
				moves, double := s.worst()
				t.Logf("%d moves at most, two owners for %v at most", moves, double)
				if moves > tt.moves || double > tt.double {
					t.Errorf("an address moved %d times and had two owners for %v; want %d and %v at most", moves,
						double, tt.moves, tt.double)
				}
				if left := s.ownedBy("w1") == 0; left != tt.left {
					t.Errorf("w1 owns %d in the end", s.ownedBy("w1"))
				}
			})
		})
	}
}

// servedOn returns Backends of all ports in both families on these nodes.
func servedOn(nodes ...string) lb.Backend {
	return lb.Backend{Families: lb.FamilySetOf(lb.IPv4, lb.IPv6), Nodes: lb.Names{}.With(nodes...)}
}
