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
	// goodbyes are sent several times, because each may be lost.
	goodbyes        = 3
	goodbyeInterval = 5 * time.Millisecond
	// maxRefusals is more than peers send in an interval: each sends at most one a second, after a few at once.
	maxRefusals = 200
)

// receiver gets what arrives.
type receiver interface {
	Receive(at time.Duration, p detect.Packet)
	ReceiveRefusal(at time.Duration, from detect.NodeID)
}

// beatThread drives the detector with a real clock and real sockets. It calls nothing that waits for another thread,
// and does not log.
type beatThread struct {
	// The thread shares these with other goroutines, and waits for none of them.
	orders    chan order
	views     chan *detect.View
	questions chan detect.WireQuestion

	processSettings
	shared *sharedState
	// cpu is nil without real-time priority.
	cpu      *cpuBudget
	realtime bool
	sockets  *sockets
	detector *detect.Detector
	receiver receiver
	stopped  bool

	// The keys, addresses and names of peers, by orders.
	seals, frameSeals []*rt.Seal
	byAddr            map[netip.Addr]detect.NodeID
	addrs             map[detect.NodeID][]byte
	names             map[detect.NodeID]string

	// links are the links that frames are sent on, and linkViews what their detectors know. openedLinks are the links
	// of the orders, for the goroutine that reads these.
	links       []*linkPath
	linkViews   []detect.LinkView
	openedLinks []Link
	// listPeersAt is when linkViews may have other nodes than before.
	listPeersAt time.Duration
	// nodePath is the link of Address, with the detector above; nil where it is not known.
	nodePath *linkPath
	// frames is the memory for the frames of any link.
	frames *batchSocket

	// read counts datagrams since intervalBegan, up to readLimit, which all links together have for frames too.
	// refusalsRead counts errors, up to maxRefusals. A flood of any must not keep a thread busy that has priority over
	// all others, nor displace the others.
	read, readLimit, refusalsRead int
	intervalBegan                 time.Duration
	// drainedAt is when all routine heartbeats were last read.
	drainedAt time.Duration
	// nextRoutine is the next of the routineCount heartbeats that were read at once.
	nextRoutine, routineCount int
	// claims is the memory for the claims of a packet.
	claims []detect.NodeClaim

	// beats counts the ticks with heartbeats. stats are the part of the detector's that the counters have.
	beats uint64
	stats detect.Stats
	// view is what was last published, of version published.
	view      *detect.View
	published uint64
}

// newBeatThread opens the sockets. The thread takes part after its first order.
func newBeatThread(c processSettings, s *sharedState, cpu *cpuBudget) (*beatThread, error) {
	sockets, err := openSockets(netip.AddrPortFrom(c.Address, c.Port))
	if err != nil {
		return nil, fmt.Errorf("start heartbeats: %w", err)
	}

	t := &beatThread{
		orders:          make(chan order, maxWireQuestions),
		views:           make(chan *detect.View, 1),
		questions:       make(chan detect.WireQuestion, maxWireQuestions),
		processSettings: c,
		shared:          s,
		cpu:             cpu,
		realtime:        s.realtime.Load(),
		sockets:         sockets,
		frames:          newBatchSocket(),
		view:            &detect.View{},
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

// run takes part until an order says to leave, and says goodbye.
func (t *beatThread) run() {
	for !t.stopped {
		if t.shared.isSpeakerHanging() {
			t.wait(t.Interval, false) // the detector will find that it did not run
			t.carryOutOrders()        // an order to leave may come before the speaker runs again
			continue
		}
		t.step()
		t.accountCPU()
		t.wait(t.nextDue()-boottime(), true)
	}

	for range goodbyes {
		t.detector.Leave(boottime())
		t.send()
		for _, l := range t.links {
			l.detector.Leave(boottime())
			t.sendFrames(l)
		}
		t.wait(goodbyeInterval, false)
	}
}

// wait returns after a time, or when the thread is woken. If the thread reads afterwards, it also returns when there is
// something to read. It watches no file that is not read, which would end every sleep at once.
func (t *beatThread) wait(d time.Duration, reads bool) {
	s := t.sockets
	datagrams := reads && t.read < t.readLimit
	s.watch(urgentFile, s.urgent.fd, unix.EPOLLIN, datagrams)
	s.watch(routineFile, s.routine.fd, unix.EPOLLIN, datagrams && t.detector.HasSuspect())
	s.watch(refusalsFile, s.out.fd, 0, reads && t.refusalsRead < maxRefusals) // the kernel always reports errors

	l := t.nodePath
	if l != nil {
		// At rest these are hellos, which can wait.
		frames := reads && t.detector.UsesFrames() && l.read < t.frameLimit()
		s.watch(nodePathFile, l.fd, unix.EPOLLIN, frames)
	}
	s.sleep(d)
}

// step reads what came, does what is due, and publishes what is known.
func (t *beatThread) step() {
	t.carryOutOrders()
	t.receive()
	t.stepNodePath()
	// The lease's clock first: time that passes in between shortens the lease.
	leasedAt := monotonic()
	at := boottime()
	if at >= t.intervalBegan+t.Interval {
		t.intervalBegan = at
		t.read, t.refusalsRead = 0, 0
		for _, l := range t.links {
			l.read = 0
		}
		if t.nodePath != nil {
			t.nodePath.read = 0
		}
	}

	beat := t.detector.Tick(at)
	t.send()
	if beat {
		t.beats++
		// By the time before the heartbeats went: no node's patience began earlier.
		t.shared.lease.renew(t.detector.Epoch(), leasedAt+t.detector.Hold())
		t.shared.latest.Store(int64(t.detector.Lateness()))
		t.shared.hearsSome.Store(t.detector.HearsSome())
	}
	t.stepLinks(at, beat)
	t.countStats()

	// Changes by time alone are looked for with each second heartbeat: with 1,000 nodes that takes longer than all
	// else.
	isLook := beat && t.beats%2 == 1
	version := t.detector.Version()
	hasNewLinks := !slices.EqualFunc(t.linkViews, t.view.Links, detect.LinkView.Equal)
	if isLook || hasNewLinks || version != t.published {
		t.published = version
		t.publish(at)
	}
}

// countStats adds what the detector counted to the counters.
func (t *beatThread) countStats() {
	stats := t.detector.Stats()
	if stats != t.stats {
		t.shared.counters.add(t.stats, stats)
		t.stats = stats
	}
}

// accountCPU keeps the process within its budget, and tells the detector about its priority.
func (t *beatThread) accountCPU() {
	if t.cpu == nil {
		return
	}

	t.cpu.account(boottime())
	realtime := t.shared.realtime.Load()
	if realtime != t.realtime {
		t.realtime = realtime
		t.detector.SetRealtime(realtime)
		for _, l := range t.links {
			l.detector.SetRealtime(realtime)
		}
	}
}

// carryOutOrders carries out the orders that came.
func (t *beatThread) carryOutOrders() {
	for {
		select {
		case o := <-t.orders:
			t.carryOut(o)
		default:
			return
		}
	}
}

func (t *beatThread) carryOut(o order) {
	if o.Keys != nil {
		t.setKeys(o.Keys)
	}
	if o.Peers != nil {
		t.setPeers(o.Peers)
	}
	if o.Links != nil {
		t.setLinks(o.Links, o.opened)
	}
	if o.Answer != nil {
		t.detector.ReceiveAnswer(boottime(), o.Answer.Question, o.Answer.Answer)
	}
	t.stopped = t.stopped || o.Leave
}

func (t *beatThread) setKeys(keys [][]byte) {
	t.seals = rt.NewSeals(keys, sealKind)
	t.sockets.setFilter(t.seals)
	t.frameSeals = rt.NewSeals(keys, frameSealKind)
	for _, l := range t.links {
		setFrameFilter(l.fd, t.frameSeals)
	}
	if t.nodePath != nil {
		setFrameFilter(t.nodePath.fd, t.frameSeals)
	}
}

func (t *beatThread) setPeers(peers []Peer) {
	listed := make([]detect.Peer, 0, len(peers))
	t.byAddr = make(map[netip.Addr]detect.NodeID, len(peers))
	t.addrs = make(map[detect.NodeID][]byte, len(peers))
	t.names = make(map[detect.NodeID]string, len(peers))
	for _, p := range peers {
		listed = append(listed, detect.Peer{Name: p.Name, Gossip: p.Gossip})
		if p.Name == t.NodeName {
			continue
		}
		id := detect.NodeIDOf(p.Name)
		t.names[id] = p.Name
		if p.Address.Is6() != t.sockets.is6 {
			continue // a node of the other family, which only gossip and frames reach
		}
		t.byAddr[p.Address] = id
		t.addrs[id] = rawAddress(netip.AddrPortFrom(p.Address, t.Port))
	}
	t.detector.SetPeers(boottime(), listed)
	for _, l := range t.links {
		t.setLinkPeers(boottime(), l)
	}
	if t.nodePath != nil {
		t.setLinkPeers(boottime(), t.nodePath)
	}
	t.readLimit = 500 + 5*len(peers)
}

// receive reads until nothing waits or the limit is reached.
func (t *beatThread) receive() {
	for more := true; more; {
		more = t.receiveUrgent()
	}
	t.receiveRoutine(math.MaxInt64)
	t.receiveRefusals()
}

// receiveUrgent reads a batch of urgent datagrams, and reports whether more may wait.
func (t *beatThread) receiveUrgent() (more bool) {
	n := 0
	if t.sockets.found[urgentFile] && t.read < t.readLimit {
		n = t.sockets.urgent.receive(t.readLimit-t.read, 0)
	}
	t.read += n
	if t.nextRoutine == t.routineCount {
		t.readRoutine()
	}

	for i := range n {
		// In the order in which they came: a packet with a lower number than the sender's last counts as lost.
		t.receiveRoutine(t.sockets.urgent.receivedAt(i))
		t.receiveDatagram(boottime(), t.sockets.urgent.sender(i), t.sockets.urgent.datagram(i))
	}

	return n == maxBatch
}

// readRoutine reads a batch of routine heartbeats.
func (t *beatThread) readRoutine() {
	t.nextRoutine, t.routineCount = 0, 0
	if t.read < t.readLimit {
		t.routineCount = t.sockets.routine.receive(t.readLimit-t.read, 0)
		t.read += t.routineCount
	}
}

// receiveRoutine takes the routine heartbeats that came until a time by the wall clock. Each counts as of its
// arrival, but not before a heartbeat that was read earlier, because the wall clock may be set.
func (t *beatThread) receiveRoutine(until time.Duration) {
	at := boottime()
	wall := rt.Clock(unix.CLOCK_REALTIME)
	for b := t.sockets.routine; ; t.readRoutine() {
		for ; t.nextRoutine < t.routineCount; t.nextRoutine++ {
			i := t.nextRoutine
			cameAt := b.receivedAt(i)
			if cameAt > until {
				return
			}
			arrival := min(max(at-(wall-cameAt), t.drainedAt), at)
			t.receiveDatagram(arrival, b.sender(i), b.datagram(i))
		}
		if t.read >= t.readLimit {
			return
		}
		if t.routineCount < maxBatch {
			t.drainedAt = at
			return
		}
	}
}

// receiveRefusals reads the errors of the socket that sends.
func (t *beatThread) receiveRefusals() {
	b := t.sockets.refusals
	for t.sockets.found[refusalsFile] && t.refusalsRead < maxRefusals {
		n := b.receive(maxRefusals-t.refusalsRead, unix.MSG_ERRQUEUE)
		for i := range n {
			from, packet, ok := b.refusal(i)
			id, isKnown := t.byAddr[from]
			isRefusal := ok && isKnown
			if isRefusal && t.isOwnPacket(packet) {
				t.receiveRefusal(boottime(), id)
			}
		}
		t.refusalsRead += n
		if n < maxBatch {
			return
		}
	}
}

// receiveRefusal takes a refusal, which shows on every link that the node is up without a speaker.
func (t *beatThread) receiveRefusal(at time.Duration, from detect.NodeID) {
	t.receiver.ReceiveRefusal(at, from)
	for _, l := range t.links {
		l.detector.ReceiveRefusal(at, from)
	}
}

// receiveDatagram takes a datagram that came at a time. A datagram that is not from a peer costs one map look-up.
func (t *beatThread) receiveDatagram(at time.Duration, from netip.Addr, b []byte) {
	if len(b) == 0 {
		return
	}

	id, known := t.byAddr[from]
	if !known {
		t.shared.rejected.Add(1)
		return
	}
	p, ok := t.open(b)
	if !ok || p.From != id {
		t.shared.rejected.Add(1)
		return
	}
	t.shared.received.Add(1)
	t.receiver.Receive(at, p)
}

// open returns the packet in a datagram. Its claims are valid until the next call.
func (t *beatThread) open(b []byte) (p detect.Packet, ok bool) {
	opened, ok := rt.Open(t.seals, b, 0)
	if !ok {
		return detect.Packet{}, false
	}
	p, ok = detect.ParsePacket(opened[rt.PrefixLen:], t.claims)
	t.claims = p.Claims

	return p, ok
}

// isOwnPacket reports whether a packet begins as this node's own do, with any of the keys.
func (t *beatThread) isOwnPacket(packet []byte) bool {
	return slices.ContainsFunc(t.seals, func(s *rt.Seal) bool { return s.Begins(packet) })
}

// send sends the detector's packets, and hands on its questions for the wire.
func (t *beatThread) send() {
	packets := t.detector.TakePackets()
	for i := range packets {
		p := &packets[i]
		to := t.addrs[p.To]
		if to != nil {
			t.sockets.out.queue(t.seals[0], p, to)
		}
		t.queueAsFrame(p)
	}
	t.sockets.out.flush()
	t.frames.flush()

	for _, q := range t.detector.TakeQuestions() {
		select {
		case t.questions <- q:
		default: // many nodes are silent at once: it is not necessary to ask about each
		}
	}
}

// publish publishes a View if it changed.
func (t *beatThread) publish(at time.Duration) {
	view := t.detector.View(at)
	view.Links = t.linkViews
	if view.Equal(t.view) {
		return
	}

	t.view = new(view)
	select {
	case <-t.views: // the last one was not taken
	default:
	}
	t.views <- t.view // no other goroutine sends
}
