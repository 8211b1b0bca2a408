package detect

import "time"

// Two speakers whose addresses are on one link send the same packets as frames there too while datagrams do not arrive,
// as where a firewall drops or refuses their port. What came as a datagram is old as a frame.
const (
	// datagramTime is how long no datagram comes from a peer until frames are asked for. It is so long that frames do
	// not hide packet loss.
	datagramTime = time.Second
	// slowFrames is how many heartbeats there are for each that goes as a frame to a peer that is not running: switches
	// flood what goes to a machine that is gone.
	slowFrames = 16
	// reorderedPackets is how many packets may overtake another, which then still shows that its carrier works.
	reorderedPackets = 16
	// rejectedTime is how long a firewall that refused in a node's name is expected to do so again.
	rejectedTime = 10 * time.Second
)

// carriers are what a peer's packets come by.
type carriers struct {
	// datagramAt is when a datagram last came, or when the peer was listed. frameAt is when a frame last came.
	datagramAt, frameAt time.Duration
	// framesWantedAt is when the peer last reported that it gets no datagrams of this node.
	framesWantedAt time.Duration
	// lacksDatagrams reports whether this node gets no datagrams of the peer, and getsFrames whether packets to the
	// peer go as frames too.
	lacksDatagrams, getsFrames bool
}

// ReceiveFrame is Receive for a packet that came as a frame on the link of this node's address.
func (d *Detector) ReceiveFrame(at time.Duration, p Packet) { d.receive(at, p, true) }

// AsFrame prepares a packet that went as a datagram to go as a frame too. It reports whether it has to.
func (d *Detector) AsFrame(p *Packet) bool {
	to := d.peers[p.To]
	if to == nil || !to.getsFrames {
		return false
	}

	p.LacksDatagrams = to.lacksDatagrams
	isSlow := p.Heartbeat && to.Status > HoldDown

	return !isSlow || p.Heartbeats%slowFrames == 0
}

// UsesFrames reports whether frames are exchanged with any peer.
func (d *Detector) UsesFrames() bool { return d.usesFrames }

// LastFrame returns when a frame of a peer's present run last came, 0 for never. It may be a copy of a datagram.
func (d *Detector) LastFrame(id NodeID) time.Duration {
	p := d.peers[id]
	if p == nil {
		return 0
	}

	return p.frameAt
}

// noteCarrier notes by what a packet of the peer's present run came, which the other carrier may have brought before.
func (p *peerState) noteCarrier(at time.Duration, packet Packet, isFrame bool) {
	isRecent := packet.Boot == p.session.boot && packet.Seq+reorderedPackets >= p.session.seq
	switch {
	case !isRecent:
	case isFrame:
		p.frameAt = at
		if packet.LacksDatagrams {
			p.framesWantedAt = at
		}
	default:
		p.datagramAt = at
	}
}

// chooseCarriers decides by what packets go to a peer.
func (d *Detector) chooseCarriers(at time.Duration, p *peerState) {
	patience := datagramTime
	if !p.watched && p.lastHeard != 0 {
		patience += d.probePatience()
	}
	isWanted := p.framesWantedAt != 0 && at-p.framesWantedAt <= patience
	p.lacksDatagrams = at-p.datagramAt > patience
	p.getsFrames = p.lacksDatagrams || isWanted
	d.usesFrames = d.usesFrames || p.getsFrames
}

// isByFrames reports whether frames of the peer arrive, and datagrams do not.
func (p *peerState) isByFrames(at time.Duration) bool {
	return p.lacksDatagrams && p.frameAt != 0 && at-p.frameAt < blockedTime
}

// noteRefusalRefuted notes that a packet came from a run of the peer whose port seemed to be closed before: a
// firewall refuses in the name of its node.
func (p *peerState) noteRefusalRefuted(at time.Duration, isNewRun bool) {
	switch {
	case isNewRun:
		p.refusedAt, p.rejectedAt = 0, 0
	case p.refusedAt != 0 && at > p.refusedAt:
		p.rejectedAt = p.refusedAt
	}
}
