package heartbeat

import (
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

// Link is an interface of this node on which it sends heartbeats too, by frames.
type Link struct {
	Name  string
	Index int
	MAC   macAddress
	// Fast has heartbeats sent there as often as to nodes' addresses.
	Fast bool
	// NodePath marks the link of Config.Address. The packets to nodes' addresses go there as frames too while datagrams
	// do not arrive.
	NodePath bool
}

const (
	// slowFactor is how many intervals there are between the heartbeats on a link that is not Fast, and slowMultiplier
	// how many of these make a suspect.
	slowFactor, slowMultiplier = 16, 2
	// readEvery is how many intervals frames wait at most on such a link.
	readEvery = 4
	// minHello and maxHello are the times between the first two hellos on a link, and between all later ones.
	minHello, maxHello = time.Second, 30 * time.Second
	// listTime is how long the nodes of all links are not listed again after they were, for each: a View that has many
	// costs some microseconds for each to make, send and read.
	listTime = 20 * time.Microsecond
	// replaceTime is how long an interface is not heard until another one of its node replaces it, and absentTime how
	// long until its node is no longer expected on a link that works.
	replaceTime, absentTime = 2 * time.Second, 10 * time.Minute
)

// linkPath is a link with the detector that judges it.
type linkPath struct {
	Link
	// fd is a packet socket. The thread reads it when it wakes: frames wake nothing.
	fd       int
	detector *detect.Detector
	// read counts the frames since beatThread.intervalBegan.
	read int
	// ends are the interfaces of other nodes on the link.
	ends map[detect.NodeID]*farEnd
	// hasNewEnds reports whether the detector does not know all of their nodes yet: where a thousand speakers start
	// together it gets them in few steps.
	hasNewEnds bool
	// drainedAt is when all frames were last read.
	drainedAt time.Duration
	// helloAt is when the next hello is due, and helloIn the time until the one after it.
	helloAt, helloIn time.Duration
	// view is of version viewed of the detector.
	view   detect.LinkView
	viewed uint64
}

// farEnd is the interface of another node on a link.
type farEnd struct {
	linkEnd
	// seenAt is when a hello or another frame last came from it.
	seenAt time.Duration
}

// timersOf returns the timers of the detector of a link.
func timersOf(l Link, c detect.Timers) detect.Timers {
	if l.Fast {
		return c
	}

	return detect.Timers{Interval: slowFactor * c.Interval, Multiplier: slowMultiplier}
}

// newLinkPath opens a socket on a link.
func newLinkPath(l Link) (*linkPath, error) {
	fd, err := openFrameSocket(l)
	if err != nil {
		return nil, err
	}

	return &linkPath{
		Link:    l,
		fd:      fd,
		ends:    map[detect.NodeID]*farEnd{},
		helloIn: minHello,
		view:    detect.LinkView{Link: l.Name},
	}, nil
}

// own returns this node's end of the link.
func (l *linkPath) own() linkEnd {
	return linkEnd{
		mac:   l.MAC,
		index: uint32(l.Index),
	}
}

// openLinks opens a socket on each link that has none. It is not called by the thread, because it may wait. A link
// without a socket is judged without frames.
func (t *beatThread) openLinks(links []Link) (opened []*linkPath) {
	before := t.openedLinks
	t.openedLinks = nil
	for _, l := range links {
		if slices.Contains(before, l) {
			t.openedLinks = append(t.openedLinks, l)
			continue
		}

		path, err := newLinkPath(l)
		if err != nil {
			continue
		}
		opened = append(opened, path)
		t.openedLinks = append(t.openedLinks, l)
	}

	return opened
}

// setLinks replaces the links.
func (t *beatThread) setLinks(links []Link, opened []*linkPath) {
	t.links = slices.DeleteFunc(t.links, func(l *linkPath) bool {
		if slices.Contains(links, l.Link) {
			return false
		}
		go rt.CloseFile(l.fd) // the thread does not wait for it
		return true
	})
	if t.nodePath != nil && !slices.Contains(links, t.nodePath.Link) {
		t.setNodePath(nil)
	}

	for _, l := range opened {
		if l.NodePath {
			t.setNodePath(l)
			continue
		}

		config := detect.Config{
			Timers:   timersOf(l.Link, t.Timers),
			NodeName: t.NodeName,
			Realtime: t.realtime,
			Epoch:    1,
			Random:   rt.Random,
		}
		l.detector = detect.New(config, t.detector.LastBeat())
		setFrameFilter(l.fd, t.frameSeals)
		t.links = append(t.links, l)
	}

	detectors := make([]*detect.Detector, 0, len(t.links))
	for _, l := range t.links {
		detectors = append(detectors, l.detector)
	}
	t.detector.SetLinks(detectors)
}

// setFrameFilter has the kernel drop frames without a prefix of the seals.
func setFrameFilter(fd int, seals []*rt.Seal) {
	// It fails only without memory. Then all frames are dropped, or those with the former keys pass.
	_ = rt.Attach(fd, unix.SO_ATTACH_FILTER, frameFilter(seals))
}

// setLinkPeers gives the detector of a link the nodes on it.
func (t *beatThread) setLinkPeers(at time.Duration, l *linkPath) {
	l.hasNewEnds = false
	if l.NodePath {
		maps.DeleteFunc(l.ends, func(id detect.NodeID, _ *farEnd) bool { return t.names[id] == "" })
		return
	}

	var peers []detect.Peer
	for id := range l.ends {
		name, isListed := t.names[id]
		if !isListed || l.isAbsent(at, id) {
			delete(l.ends, id)
			continue
		}

		// No node decides alone on a link: package liveness asks the other machines there.
		peers = append(peers, detect.Peer{Name: name, Gossip: true})
	}
	l.detector.SetPeers(at, peers)
}

// isAbsent reports whether a node is no longer expected on the link. While the link is dead all nodes are, and a node
// that died there stays dead.
func (l *linkPath) isAbsent(at time.Duration, id detect.NodeID) bool {
	lastSeen := max(l.ends[id].seenAt, l.detector.LastHeard(id))
	works := l.view.State == detect.LinkWorks

	return works && at-lastSeen > absentTime && l.detector.StatusOf(at, id) != detect.Dead
}

// stepLinks does for all links what step does for the network between nodes' addresses.
func (t *beatThread) stepLinks(at time.Duration, beat bool) {
	isRead := beat && t.beats%readEvery == 0
	for _, l := range t.links {
		isDue := l.detector.Due() <= at
		if isDue || isRead || l.detector.HasSuspect() {
			t.receiveFrames(l)
		}
		if l.hasNewEnds {
			t.setLinkPeers(at, l)
		}
		if isDue {
			l.detector.Tick(at)
		}
		if at >= l.helloAt {
			t.sendHello(at, l)
		}
		t.sendFrames(l)
	}
	t.viewLinks(at)
}

// nextDue returns when step has something to do. A link whose nodes are all heard can wait for the next heartbeats.
func (t *beatThread) nextDue() time.Duration {
	due := t.detector.Due()
	for _, l := range t.links {
		if l.detector.HasSuspect() {
			due = min(due, l.detector.Due())
		}
	}

	return due
}

// receiveFrames takes the frames that wait on a link. Each counts as of its arrival, as in receiveRoutine.
func (t *beatThread) receiveFrames(l *linkPath) {
	at := boottime()
	wall := rt.Clock(unix.CLOCK_REALTIME)
	t.frames.fd = l.fd
	for limit := t.frameLimit(); l.read < limit; {
		n := t.frames.receive(limit-l.read, 0)
		l.read += n
		for i := range n {
			age := wall - t.frames.receivedAt(i)
			arrival := min(max(at-age, l.drainedAt), at)
			t.receiveFrame(arrival, l, t.frames.datagram(i))
		}
		if n < maxBatch && l.read < limit {
			l.drainedAt = at
			return
		}
	}
}

// frameLimit returns how many frames are read from one link in an interval. A flood there takes nothing from others.
func (t *beatThread) frameLimit() int { return max(t.readLimit/max(len(t.links), 1), maxBatch) }

// receiveFrame takes a frame that came at a time.
func (t *beatThread) receiveFrame(at time.Duration, l *linkPath, frame []byte) {
	if len(frame) == 0 {
		return // the link is down
	}

	f, ok := openFrame(t.frameSeals, frame, t.claims)
	_, isListed := t.names[f.packet.From]
	isOurs := f.isHello() || f.isFor(l.own())
	if !ok || !isListed || !isOurs {
		t.shared.rejected.Add(1)
		return
	}
	t.claims = f.packet.Claims
	t.shared.received.Add(1)

	isKnown := t.isFarEnd(at, l, f.packet.From, f.from)
	switch {
	case !isKnown:
	case l.NodePath && f.isHello():
	case l.NodePath:
		l.detector.ReceiveFrame(at, f.packet)
	case f.isHello():
		l.detector.ReceiveHello(at, f.packet.From)
	default:
		l.detector.Receive(at, f.packet)
	}
}

// isFarEnd reports whether an interface is the one by which this node knows another node on a link. The first that
// comes is, until it is not heard any more: a hello proves that it was there once, and a session of the detector that
// it still is.
func (t *beatThread) isFarEnd(at time.Duration, l *linkPath, id detect.NodeID, from linkEnd) bool {
	end := l.ends[id]
	switch {
	case end != nil && end.linkEnd == from:
		end.seenAt = at
		return true
	case end != nil && at-l.lastHeard(id) < replaceTime:
		return false
	}

	l.ends[id] = &farEnd{linkEnd: from, seenAt: at}
	l.hasNewEnds = l.hasNewEnds || end == nil

	return true
}

// lastHeard returns when the known end of a node was last heard. Datagrams show nothing about it, and neither do
// hellos, which can be sent again.
func (l *linkPath) lastHeard(id detect.NodeID) time.Duration {
	if l.NodePath {
		return l.detector.LastFrame(id)
	}

	return l.detector.LastHeard(id)
}

// sendHello sends a hello, which also teaches switches where this node is.
func (t *beatThread) sendHello(at time.Duration, l *linkPath) {
	l.helloAt = at + l.helloIn
	l.helloIn = min(2*l.helloIn, maxHello)
	hello := l.detector.Hello()
	t.frames.fd = l.fd
	t.queueFrame(l, everyEnd, &hello)
	t.frames.flush()
	t.setLinkPeers(at, l)
}

// sendFrames sends the packets of a link's detector. Its questions for the wire are not asked: see setLinkPeers.
func (t *beatThread) sendFrames(l *linkPath) {
	l.detector.TakeQuestions()
	packets := l.detector.TakePackets()
	if len(packets) == 0 {
		return
	}

	t.frames.fd = l.fd
	for i := range packets {
		p := &packets[i]
		end := l.ends[p.To]
		if end != nil {
			t.queueFrame(l, end.linkEnd, p)
		}
	}
	t.frames.flush()
}

func (t *beatThread) queueFrame(l *linkPath, to linkEnd, p *detect.Packet) {
	seal := t.frameSeals[0]
	frame := sealFrame(seal, t.frames.next(), l.own(), to, p)
	t.frames.add(frame, nil)
}

// viewLinks notes what the detectors of all links know, for the View.
func (t *beatThread) viewLinks(at time.Duration) {
	mayList := at >= t.listPeersAt
	hasChanged := len(t.linkViews) != len(t.links)
	ends, isListed := 0, false
	for _, l := range t.links {
		ends += len(l.ends)
		state := l.detector.LinkState(at, t.detector)
		hasNews := mayList && l.viewed != l.detector.Version()
		if !hasNews && l.view.State == state {
			continue
		}

		hasChanged = true
		l.view.State = state
		if hasNews {
			l.viewed = l.detector.Version()
			l.view.Peers = l.peers(at)
			isListed = true
		}
	}
	if isListed {
		t.listPeersAt = at + time.Duration(ends)*listTime
	}
	if !hasChanged {
		return
	}

	views := make([]detect.LinkView, 0, len(t.links))
	for _, l := range t.links {
		views = append(views, l.view)
	}
	t.linkViews = views
}

// peers returns the nodes whose frames came.
func (l *linkPath) peers(at time.Duration) (out []detect.LinkPeer) {
	others := l.detector.View(at).Members[1:]
	for _, m := range others {
		end := l.ends[detect.NodeIDOf(m.Name)]
		if !m.Heard || end == nil {
			continue
		}

		peer := detect.LinkPeer{
			Name:   m.Name,
			MAC:    end.mac,
			Status: m.Status,
		}
		out = append(out, peer)
	}

	return out
}
