package detect

import (
	"cmp"
	"container/heap"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// world is a network of detectors in memory, with a clock of its own: the same
// seed gives the same history.
type world struct {
	random *rand.Rand
	clock  time.Duration
	queue  events
	nodes  []*node
	byID   map[NodeID]*node
	order  int

	// loss is the share of packets lost, late the most a packet is under way.
	loss float64
	late time.Duration
	// wakes is how late a thread wakes at most. inStep: all beat at the same moment.
	wakes  time.Duration
	inStep bool
	// cut says which packets do not arrive; nil cuts none.
	cut func(from, to *node) bool
	// blocked says which heartbeats do not arrive, though questions on the wire do.
	blocked func(from, to *node) bool
	// rejected says which heartbeats a firewall refuses at their destination, in its name.
	rejected func(from, to *node) bool
	// dropped says which frames do not arrive on the link of the heartbeats, though all else does.
	dropped func(from, to *node) bool
	// noWire: no link is shared on which a node could be asked.
	noWire bool
	// announcesNothing: no node has an address that it could be asked for.
	announcesNothing bool
	// noGateway: no foreign machine was ever there.
	noGateway bool
	// answersARP: the switch next to each node answers ARP for all machines. It has no echo.
	answersARP bool
	// clients is a second network that all nodes share, without heartbeats; nil where there is none.
	clients *network
	// firstOnClients is how many nodes have a link to it, if not all. silent are the nodes that leave it to others.
	firstOnClients int
	silent         map[*node]bool
	// tap sees every packet sent.
	tap func(from, to *node, p Packet)
	// gossips: gossip reaches every node that is up.
	gossips bool
	timers  Timers
	// maxHoldDown replaces the usual one, unless it is 0.
	maxHoldDown time.Duration
}

// network is one without heartbeats, on which nodes are asked.
type network struct {
	// cut says which frames do not arrive; nil cuts none.
	cut func(from, to *node) bool
	// hasForeign: a foreign machine is known there. isOld: speakers do not say whether they hear others.
	hasForeign, isOld bool
	// isStalled reports whether speakers answer nothing at this moment; nil means never.
	isStalled func() bool
	// frames reports whether nodes send heartbeats there too, by frames. members has the nodes on it; nil is all.
	frames  bool
	members []*node
}

// has reports whether a node has a link to the network.
func (n *network) has(o *node) bool { return n.members == nil || slices.Contains(n.members, o) }

// passes reports whether a frame arrives.
func (n *network) passes(from, to *node) bool { return n.cut == nil || !n.cut(from, to) }

// ask returns what a node and a foreign machine answer to another one, three questions each.
func (n *network) ask(from, about *node) (out WireAnswer) {
	answers := func(other *node) WireReply {
		answered := 0
		for range 3 {
			if n.passes(from, other) && n.passes(other, from) {
				answered++
			}
		}
		if answered >= 2 {
			return Answered
		}
		return Unanswered
	}
	out.Elsewhere = Unanswered
	if about.runs() && (n.isStalled == nil || !n.isStalled()) {
		out.Elsewhere = answers(about)
		tells := answers(about) == Answered && !n.isOld
		out.Hears, out.HearsNone = tells && about.hears(), tells && !about.hears()
	}
	if n.hasForeign {
		out.ForeignElsewhere = answers(outside)
	}
	return out
}

// node is one host of the world.
type node struct {
	world *world
	name  string
	id    NodeID
	d     *Detector
	// up is false after a power-off, killed after the death of the process alone.
	up, killed bool
	// skew is how far its clock is ahead of the world's.
	skew time.Duration
	// pausedUntil: the process does not run, and packets wait.
	pausedUntil time.Duration
	waiting     []arrival
	// slow is the most that the thread waits for its turn after each step.
	slow time.Duration
	sent int
	// askedAt is when it asked the wire last, foreignAt when a foreign machine answered last; foreignWorks: one did
	// when it asked last.
	askedAt, foreignAt time.Duration
	foreignWorks       bool
	// refusals has what its kernel may still refuse to each other node.
	refusals map[*node]refusals
	// wakes is when the next tick is planned, hasty how often in a row it was due already.
	wakes time.Duration
	hasty int
	// end is its end of the clients' network; nil without heartbeats there.
	end *linkEnd
}

// arrival is a packet with the time when it came.
type arrival struct {
	Packet
	at      time.Duration
	isFrame bool
}

// routine: it does not wake the thread, see choice.
func (p *Packet) routine() bool {
	return p.Heartbeat && !p.Ping && !p.Complains && !p.Lost && !p.HearsBadly && !p.HearsNone && p.Challenge == 0 &&
		p.Answer == 0
}

// refusalInterval is between the refusals that a kernel sends to one destination, after so many at once.
const (
	refusalInterval = time.Second
	refusalBurst    = 6
)

// refusals are what the kernel has left of the time that each of them costs.
type refusals struct{ left, countedAt time.Duration }

type event struct {
	at    time.Duration
	order int
	do    func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

// newWorld starts n nodes that know of each other.
func newWorld(seed uint64, n int) *world { return newWorldOf(seed, n, Timers{}) }

// newWorldOf starts them with these timers, and with clocks that are ahead as said.
func newWorldOf(seed uint64, n int, timers Timers, skews ...time.Duration) *world {
	return newWorldWith(seed, n, func(w *world) { w.timers = timers }, skews...)
}

// newWorldWith starts them in a world that was changed before.
func newWorldWith(seed uint64, n int, change func(w *world), skews ...time.Duration) *world {
	w := &world{
		random: rand.New(rand.NewPCG(seed, 1)), clock: time.Second, late: ms / 2, wakes: ms, gossips: true,
		byID: map[NodeID]*node{}, silent: map[*node]bool{},
	}
	change(w)
	for i := range n {
		one := &node{world: w, name: fmt.Sprintf("node-%03d", i), refusals: map[*node]refusals{}}
		if i < len(skews) {
			one.skew = skews[i]
		}
		one.id = NodeIDOf(one.name)
		w.nodes = append(w.nodes, one)
		w.byID[one.id] = one
	}
	if w.firstOnClients > 0 {
		w.clients.members = w.nodes[:w.firstOnClients]
	}
	for _, n := range w.nodes {
		n.boot()
	}
	w.gossip()
	return w
}

// start boots the node, and gossip finds it after a while.
func (n *node) start() {
	n.boot()
	n.world.at(n.world.clock+time.Second, n.world.gossip)
}

// boot starts the process, which knows nothing.
func (n *node) boot() {
	w := n.world
	n.up = true
	n.killed = false
	n.waiting = nil
	n.pausedUntil = 0
	n.d = New(Config{
		Timers: w.timers, NodeName: n.name, Realtime: true, Epoch: 1,
		Random: func() uint64 { return w.random.Uint64() | 1 },
	}, n.clock())
	n.d.maxHoldDown = cmp.Or(w.maxHoldDown, maxHoldDown)
	n.bootLink()
	if w.inStep {
		n.plan(w.clock)
		return
	}
	n.plan(w.clock + time.Duration(w.random.Int64N(int64(n.d.timers.Interval))))
}

// clock is the time by the node's own clock.
func (n *node) clock() time.Duration { return n.world.clock + n.skew }

// stop ends the node without a goodbye, as a power-off does.
func (n *node) stop() {
	n.up = false
	n.world.at(n.world.clock+2*time.Second, n.world.gossip)
}

// kill ends the process alone.
func (n *node) kill() {
	n.killed = true
	n.world.at(n.world.clock+2*time.Second, n.world.gossip)
}

// gossip brings every node up to date by the slower way.
func (w *world) gossip() {
	var peers []Peer
	for _, o := range w.nodes {
		peers = append(peers, Peer{Name: o.name, Gossip: o.up && !o.killed && w.gossips})
	}
	for _, n := range w.nodes {
		n.d.SetPeers(n.clock(), peers)
		n.setLinkPeers()
	}
}

func (w *world) at(t time.Duration, do func()) {
	w.order++
	heap.Push(&w.queue, event{t, w.order, do})
}

func (n *node) plan(t time.Duration) {
	n.wakes = t
	d := n.d
	n.world.at(t, func() {
		if n.up && !n.killed && n.d == d && n.wakes == t {
			n.run()
		}
	})
}

// run is what the thread of the node does when it wakes.
func (n *node) run() {
	w := n.world
	if w.clock < n.pausedUntil {
		n.plan(n.pausedUntil)
		return
	}
	waiting := n.waiting
	n.waiting = nil
	for _, a := range waiting {
		at := n.clock()
		switch {
		case a.isFrame:
			n.d.ReceiveFrame(a.at+n.skew, a.Packet)
			continue
		case a.routine():
			at = a.at + n.skew
		}
		n.d.Receive(at, a.Packet)
	}
	n.runLink()
	n.d.Tick(n.clock())
	for _, q := range n.d.TakeQuestions() {
		w.ask(n, q)
	}
	for _, p := range n.d.TakePackets() {
		n.sent++
		w.carry(n, p)
		if n.d.AsFrame(&p) {
			w.carryAsFrame(n, p)
		}
	}
	if n.slow > 0 {
		n.pausedUntil = w.clock + n.slow/2 + time.Duration(w.random.Int64N(int64(n.slow/2)))
	}
	if n.hasty++; n.due() > n.clock() {
		n.hasty = 0
	}
	if n.hasty > 100 {
		panic(n.name + " has work that is always due: its thread would never wait")
	}
	// A thread wakes a little late.
	n.plan(max(n.due()-n.skew, w.clock) + time.Duration(w.random.Int64N(int64(w.wakes))))
}

// ask puts three questions to a node and to a foreign machine, over the links that heartbeats use.
func (w *world) ask(from *node, q WireQuestion) {
	if w.noWire {
		return
	}
	about := w.byID[NodeIDOf(q.Name)]
	if about == nil {
		return
	}
	if w.clock-from.askedAt > foreignInterval {
		from.foreignAt = w.clock // as long as all is well they are asked from time to time
	}
	from.askedAt = w.clock
	node, foreign := 0, 0
	for range 3 {
		if about.announces() && w.passes(from, about) && w.passes(about, from) {
			node++
		}
		if w.answersARP || w.passes(from, outside) && w.passes(outside, from) {
			foreign++
		}
	}
	reply := func(n int) WireReply {
		if n >= 2 {
			return Answered
		}
		return Unanswered
	}
	d, answer := from.d, WireAnswer{Node: reply(node), Foreign: reply(foreign)}
	if w.announcesNothing {
		answer.Node = NotAsked
	}
	switch {
	case answer.Foreign == Answered && !w.noGateway:
		from.foreignAt = w.clock
	case w.noGateway, w.clock-from.foreignAt > foreignTime:
		answer.Foreign = NotAsked
	}
	from.foreignWorks = answer.Foreign == Answered
	if w.clients != nil && w.clients.has(from) && w.clients.has(about) {
		there := w.clients.ask(from, about)
		there.Node, there.Foreign = answer.Node, answer.Foreign
		answer = there
	}
	w.at(w.clock+32*ms, func() {
		if from.d == d && from.up {
			d.ReceiveAnswer(from.clock(), q, answer)
			from.plan(w.clock)
		}
	})
}

// foreignInterval is how often foreign machines are asked, and foreignTime how long those that do not answer are known:
// as in package liveness.
const (
	foreignInterval = 10 * time.Second
	foreignTime     = 30 * time.Second
)

// runs reports whether its speaker runs.
func (n *node) runs() bool { return n.up && !n.killed && n.world.clock >= n.pausedUntil }

// hears reports whether it hears a speaker, or a foreign machine, on the network of the heartbeats.
func (n *node) hears() bool {
	return n.d.hearsSome || n.foreignWorks && n.world.clock-n.askedAt < time.Second
}

// announces reports whether the node answers for what it has: a new run does so when it has planned.
func (n *node) announces() bool {
	since := n.clock() - max(n.d.startedAt, n.d.lapsedAt)
	return n.runs() && n.d.own.Status == Alive && since > time.Second
}

// outside stands for the machines that are no nodes.
var outside = &node{name: "outside", up: true}

// passes reports whether a frame arrives.
func (w *world) passes(from, to *node) bool {
	return (w.cut == nil || !w.cut(from, to)) && w.random.Float64() >= w.loss
}

func (w *world) carry(from *node, p Packet) {
	to := w.byID[p.To]
	if w.tap != nil {
		w.tap(from, to, p)
	}
	if to == nil {
		return // a phantom
	}
	if !to.up || !w.passes(from, to) || w.blocked != nil && w.blocked(from, to) {
		return
	}
	arrives := w.clock + 50*time.Microsecond + time.Duration(w.random.Int64N(int64(w.late)))
	w.at(arrives, func() {
		switch {
		case !to.up:
		case to.killed, w.rejected != nil && w.rejected(from, to):
			to.refuse(from)
		default:
			to.waiting = append(to.waiting, arrival{Packet: p, at: w.clock})
			if !p.routine() || to.d.HasSuspect() {
				to.plan(max(w.clock, to.pausedUntil))
			}
		}
	})
}

// carryAsFrame carries a packet on the link of the heartbeats as a frame, which wakes the thread.
func (w *world) carryAsFrame(from *node, p Packet) {
	to := w.byID[p.To]
	isDropped := to == nil || w.noWire || w.dropped != nil && w.dropped(from, to)
	if isDropped || !to.up || !w.passes(from, to) {
		return
	}
	arrives := w.clock + 50*time.Microsecond + time.Duration(w.random.Int64N(int64(w.late)))
	w.at(arrives, func() {
		if to.up && !to.killed {
			to.waiting = append(to.waiting, arrival{Packet: p, at: w.clock, isFrame: true})
			to.plan(max(w.clock, to.pausedUntil))
		}
	})
}

// refuse has the kernel report that no program listens.
func (n *node) refuse(to *node) {
	w, d := n.world, to.d
	if !n.refuses(to) || !w.passes(n, to) {
		return
	}
	w.at(max(w.clock, to.pausedUntil), func() {
		if d.peers[n.id] != nil && to.d == d {
			d.ReceiveRefusal(to.clock(), n.id)
			to.plan(w.clock)
		}
	})
}

// refuses reports whether the kernel sends another refusal, as Linux counts (inet_peer_xrlim_allow).
func (n *node) refuses(to *node) bool {
	l := n.refusals[to]
	l.left = min(l.left+n.world.clock-l.countedAt, refusalBurst*refusalInterval)
	l.countedAt = n.world.clock
	may := l.left >= refusalInterval
	if may {
		l.left -= refusalInterval
	}
	n.refusals[to] = l
	return may
}

// until runs the world to a time.
func (w *world) until(t time.Duration) {
	for len(w.queue) > 0 && w.queue[0].at <= t {
		e := heap.Pop(&w.queue).(event)
		w.clock = e.at
		e.do()
	}
	w.clock = t
}

func (w *world) after(d time.Duration) { w.until(w.clock + d) }

// sees returns what the node thinks of another.
func (n *node) sees(other *node) Status {
	if n == other {
		return n.d.own.Status
	}
	return n.d.status(n.clock(), n.d.peers[other.id])
}

// within runs the world until ok, at most for a time, and returns how long it took.
func (w *world) within(limit time.Duration, ok func() bool) (time.Duration, bool) {
	start := w.clock
	for !ok() {
		if w.clock >= start+limit {
			return limit, false
		}
		w.after(ms)
	}
	return w.clock - start, true
}

// all returns an ok for within: every other running node sees of as status.
func (w *world) all(of *node, status Status) func() bool {
	return func() bool {
		for _, n := range w.nodes {
			if n != of && n.up && !n.killed && n.sees(of) != status {
				return false
			}
		}
		return true
	}
}

// alive reports whether every node is alive to all, and to itself.
func (w *world) alive() bool {
	return !slices.ContainsFunc(w.nodes, func(n *node) bool { return !w.all(n, Alive)() || n.d.own.Status != Alive })
}

// apart cuts these nodes off from all others, and from foreign machines.
func apart(some ...*node) (cut func(from, to *node) bool) {
	return func(from, to *node) bool { return slices.Contains(some, from) != slices.Contains(some, to) }
}

// history is all that nodes with such clocks send each other, in short, while one
// of them dies, returns, loses its speaker, is frozen and is cut off; and what
// became of it.
func history(t *testing.T, skews ...time.Duration) (sent uint64, seen []string) {
	t.Helper()
	w := newWorldOf(13, 4, Timers{}, skews...)
	sum := fnv.New64a()
	w.tap = func(from, to *node, p Packet) { fmt.Fprintln(sum, w.clock, from.name, to.name, p) }
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
		{"frozen", func() { first.pausedUntil = w.clock + 2*time.Second }, Dead},
		{"thawed", func() { w.until(first.pausedUntil) }, HoldDown},
		{"cut off", func() { w.cut = apart(first) }, Dead},
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
