package heartbeat

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

const (
	// goodbyes are sent several times, since each may be lost.
	goodbyes        = 3
	goodbyeInterval = 5 * time.Millisecond
	// maxRefusals is more than peers send in an interval: each at most one a second, after a few.
	maxRefusals = 200
)

// receiver gets what arrives.
type receiver interface {
	Receive(now time.Duration, p detect.Packet)
	ReceiveRefusal(now time.Duration, from detect.NodeID)
}

// thread drives the detector with a real clock and a real socket. It calls
// nothing that waits for another thread, and does not log.
type thread struct {
	// What the thread shares with other goroutines, for none of which it waits.
	orders chan order
	views  chan *detect.View
	asks   chan detect.WireQuestion

	processSettings
	shared *shared
	// cpu is nil without real-time priority.
	cpu      *budget
	socket   *socket
	detector *detect.Detector
	receiver receiver
	realtime bool
	// published is the version of the detector's knowledge in view.
	published uint64
	view      *detect.View

	stopped bool
	seals   []*rt.Seal
	byAddr  map[netip.Addr]detect.NodeID
	addrs   map[detect.NodeID][]byte
	// read counts datagrams since the interval began, up to budget, and refusals counts errors, up to maxRefusals: a
	// flood of either must not keep a thread busy that has priority over all others, nor displace the other.
	read, budget, refusals int
	since                  time.Duration
	// drained is when all heartbeats that can wait were read last.
	drained time.Duration
	// beat is the next one of them, and beats how many were read at once.
	beat, beats int

	claims []detect.NodeClaim
	// stats are those that the counters have, beats counts the ticks with heartbeats.
	stats detect.Stats
	ticks uint64
}

// newThread opens the socket, and has the thread wait for its first order.
func newThread(c processSettings, s *shared, cpu *budget) (*thread, error) {
	socket, err := openSocket(netip.AddrPortFrom(c.Address, c.Port))
	if err != nil {
		return nil, fmt.Errorf("start heartbeats: %w", err)
	}
	t := &thread{
		orders:          make(chan order, maxWireQuestions),
		views:           make(chan *detect.View, 1),
		asks:            make(chan detect.WireQuestion, maxWireQuestions),
		processSettings: c,
		shared:          s,
		cpu:             cpu,
		socket:          socket,
		view:            &detect.View{},
		realtime:        s.realtime.Load(),
	}
	t.detector = detect.New(detect.Config{
		Timers:   c.Timers,
		NodeName: c.NodeName,
		Realtime: t.realtime,
		// After the epochs of the process before this one: what was confirmed then needs a new plan.
		Epoch:  s.lease.epoch.Load() + 1,
		Random: rt.Random,
	}, boottime())
	t.receiver = t.detector
	return t, nil
}

func (t *thread) run() {
	for !t.stopped {
		if t.shared.speakerHangs() {
			t.socket.wait(t.Interval, false, false, false) // the detector will find that it did not run
			t.load()                                       // it may be ordered to leave before it hears that the speaker goes on
			continue
		}
		t.step()
		t.account()
		t.socket.wait(t.detector.Due()-boottime(), t.read < t.budget, t.detector.HasSuspect(), t.refusals < maxRefusals)
	}
	for range goodbyes {
		t.detector.Leave(boottime())
		t.send()
		t.socket.wait(goodbyeInterval, false, false, false)
	}
}

// step reads what came, does what is due, and publishes what is known.
func (t *thread) step() {
	t.load()
	t.receive()
	// The lease's clock first: time that passes in between shortens the lease.
	leased := monotonic()
	now := boottime()
	if now >= t.since+t.Interval {
		t.since, t.read, t.refusals = now, 0, 0
	}
	ticked := t.detector.Tick(now)
	t.send()
	if ticked {
		t.ticks++
		// By the time before the heartbeats went: nobody's patience began earlier.
		t.shared.lease.renew(t.detector.Epoch(), leased+t.detector.Hold())
		t.shared.latest.Store(int64(t.detector.Lateness()))
		t.shared.hearsSome.Store(t.detector.HearsSome())
	}
	if stats := t.detector.Stats(); stats != t.stats {
		t.shared.counters.add(t.stats, stats)
		t.stats = stats
	}
	// What time alone changes is looked for with each second heartbeat: of 1,000 nodes it takes longer than all else.
	if ticked && t.ticks%2 == 1 || t.detector.Version() != t.published {
		t.published = t.detector.Version()
		t.publish(now)
	}
}

// load carries out the orders that came.
func (t *thread) load() {
	for {
		select {
		case o := <-t.orders:
			t.carryOut(o)
		default:
			return
		}
	}
}

func (t *thread) carryOut(o order) {
	if o.Keys != nil {
		t.seals = rt.NewSeals(o.Keys, sealKind)
		t.socket.accept(t.seals)
	}
	if o.Peers != nil {
		t.set(o.Peers)
	}
	if o.Answer != nil {
		t.detector.ReceiveAnswer(boottime(), o.Answer.Question, o.Answer.Answer)
	}
	t.stopped = t.stopped || o.Leave
}

func (t *thread) set(peers []Peer) {
	others := make([]detect.Peer, 0, len(peers))
	for _, p := range peers {
		others = append(others, detect.Peer{Name: p.Name, Gossip: p.Gossip})
	}
	t.detector.SetPeers(boottime(), others)
	t.byAddr = make(map[netip.Addr]detect.NodeID, len(peers))
	t.addrs = make(map[detect.NodeID][]byte, len(peers))
	for _, p := range peers {
		if p.Name == t.NodeName || p.Address.Is6() != t.socket.is6 {
			continue // this node itself, or one of the other family, which only gossip reaches
		}
		id := detect.NodeIDOf(p.Name)
		t.byAddr[p.Address] = id
		t.addrs[id] = sockaddr(netip.AddrPortFrom(p.Address, t.Port))
	}
	t.budget = 500 + 5*len(peers)
}

// receive reads until nothing waits or the budget is spent.
func (t *thread) receive() {
	for more := true; more; {
		n := 0
		if more = t.socket.found[urgentFile] && t.read < t.budget; more {
			n = t.socket.urgent.take(t.budget-t.read, 0)
			more = n == batch
		}
		t.read += n
		if t.beat == t.beats {
			t.nextBeats()
		}
		for i := range n {
			// In the order in which they came: one with a lower number than the sender's last counts as lost.
			t.receiveBeats(t.socket.urgent.at(i))
			t.take(boottime(), t.socket.urgent.from(i), t.socket.urgent.datagram(i))
		}
	}
	t.receiveBeats(math.MaxInt64)
	for b := t.socket.refusals; t.socket.found[refusalsFile] && t.refusals < maxRefusals; {
		n := b.take(maxRefusals-t.refusals, unix.MSG_ERRQUEUE)
		for i := range n {
			from, packet, ok := b.refusal(i)
			if id, known := t.byAddr[from]; ok && known && t.sentByUs(packet) {
				t.receiver.ReceiveRefusal(boottime(), id)
			}
		}
		if t.refusals += n; n < batch {
			break
		}
	}
}

// nextBeats reads a batch of the heartbeats that can wait.
func (t *thread) nextBeats() {
	t.beat, t.beats = 0, 0
	if t.read < t.budget {
		t.beats = t.socket.beats.take(t.budget-t.read, 0)
		t.read += t.beats
	}
}

// receiveBeats takes the heartbeats that can wait and came until a time by the wall clock, each as of when it came:
// after all that were read before, whoever sets that clock.
func (t *thread) receiveBeats(until time.Duration) {
	now, wall := boottime(), rt.Clock(unix.CLOCK_REALTIME)
	for b := t.socket.beats; ; t.nextBeats() {
		for ; t.beat < t.beats; t.beat++ {
			cameAt := b.at(t.beat)
			if cameAt > until {
				return
			}
			t.take(min(max(now-(wall-cameAt), t.drained), now), b.from(t.beat), b.datagram(t.beat))
		}
		if t.read >= t.budget {
			return
		}
		if t.beats < batch {
			t.drained = now
			return
		}
	}
}

// take takes a datagram that came at a time. What is not from a peer costs one look into a map.
func (t *thread) take(now time.Duration, from netip.Addr, b []byte) {
	if len(b) == 0 {
		return
	}
	id, known := t.byAddr[from]
	if !known {
		t.shared.rejected.Add(1)
		return
	}
	pkt, ok := t.open(b)
	if !ok || pkt.From != id {
		t.shared.rejected.Add(1)
		return
	}
	t.shared.received.Add(1)
	t.receiver.Receive(now, pkt)
}

// sentByUs reports whether the packet begins as this node's own do, with any of the keys.
func (t *thread) sentByUs(packet []byte) bool {
	return slices.ContainsFunc(t.seals, func(s *rt.Seal) bool { return s.Begins(packet) })
}

func (t *thread) open(b []byte) (p detect.Packet, ok bool) {
	closed, ok := rt.Open(t.seals, b, 0)
	if !ok {
		return detect.Packet{}, false
	}
	p, ok = detect.ParsePacket(closed[rt.PrefixLen:], t.claims)
	t.claims = p.Claims
	return p, ok
}

// send sends the detector's packets, and hands on its questions for the wire.
func (t *thread) send() {
	packets := t.detector.TakePackets()
	for i := range packets {
		if to := t.addrs[packets[i].To]; to != nil {
			t.socket.out.put(t.seals[0], &packets[i], to)
		}
	}
	t.socket.out.send()
	for _, q := range t.detector.TakeQuestions() {
		select {
		case t.asks <- q:
		default: // many fell silent at once: it is not necessary to ask about each
		}
	}
}

// publish publishes a new View if something changed.
func (t *thread) publish(now time.Duration) {
	v := t.detector.View(now)
	if v.Equal(t.view) {
		return
	}
	t.view = &v
	select {
	case <-t.views: // nobody took the one before
	default:
	}
	t.views <- t.view // nobody else sends
}
