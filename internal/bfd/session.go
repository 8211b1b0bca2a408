package bfd

import (
	"math"
	"time"
)

const (
	// farewells is the number of packets that report to the neighbor that the session is switched off. Each may be
	// lost, and the next periodic packet would be a second away.
	farewells        = 3
	farewellInterval = 10 * time.Millisecond
	// authenticatedTime is the time for which a packet with an authentication section counts as a reason why the
	// session is down. A neighbor that authenticates sends at least one each second.
	authenticatedTime = 5 * slowInterval
	// initialRemoteReceive is bfd.RemoteMinRxInterval before the first packet of the neighbor (RFC 5880 section 6.8.1).
	initialRemoteReceive = time.Microsecond
)

// session is the state machine of one session (RFC 5880 section 6.8). It has no clock and no socket. All times are
// times since the boot of the node.
//
// It has many fields, because they are the state variables of section 6.8.1: a packet reads and changes most of them
// together. The timers and the counters have types of their own.
type session struct {
	peer   Peer
	random func() uint64
	timers
	counters
	// myDiscr is this node's discriminator, and yourDiscr the neighbor's; 0 while no packet is received.
	myDiscr, yourDiscr uint32
	// state is this node's state, and remote the neighbor's.
	state, remote State
	diagnostic    Diagnostic
	// remoteDemand reports whether the neighbor is in demand mode.
	remoteDemand bool
	// switchedOff is Status.SwitchedOff.
	switchedOff bool

	// changedAt, heardAt and sentAt are the times of the last change of state, packet received and packet sent.
	changedAt, heardAt, sentAt time.Duration
	// nextAt is the time of the next periodic packet. It was chosen for the interval planned.
	nextAt, planned time.Duration
	// urgent reports whether a change must be sent to the neighbor at once.
	urgent bool
	// answer reports whether the neighbor has polled and must get a Final.
	answer bool
	// leaving reports whether the session ends after its last farewell, and farewells counts the remaining ones.
	leaving   bool
	farewells int

	// authenticatedAt is the time of the last packet with an authentication section; 0 if a packet was accepted since.
	authenticatedAt time.Duration
	// trouble is the reason why the session cannot send or receive.
	trouble trouble
}

// counters are the counters of Status.
type counters struct {
	ups, failures, sent, received, rejected uint64
}

// newSession returns a session that is down, with this node's discriminator.
func newSession(at time.Duration, p Peer, myDiscr uint32, random func() uint64) *session {
	s := &session{peer: p, random: random, myDiscr: myDiscr, state: Down, remote: Down, changedAt: at, nextAt: at}
	s.remoteReceive = initialRemoteReceive
	return s
}

// configure sets the settings that may change while a session runs.
func (s *session) configure(at time.Duration, p Peer) {
	s.peer = p
	s.apply(s.desiredInterval(), p.Receive, s.state == Up)
	s.plan(at)
}

// desiredInterval returns bfd.DesiredMinTxInterval. It is slow until the session is up (RFC 5880 section 6.8.3).
func (s *session) desiredInterval() time.Duration {
	if s.state != Up {
		return max(s.peer.Transmit, slowInterval)
	}
	return s.peer.Transmit
}

// leave switches the session off and ends it, without a failure (RFC 5880 section 6.8.16).
func (s *session) leave(at time.Duration) {
	if s.leaving {
		return
	}

	s.leaving = true
	s.change(at, AdminDown, SwitchedOff)
	if s.yourDiscr != 0 {
		s.farewells = farewells
	}
}

// hasEnded reports whether the session has left and sent its last packet.
func (s *session) hasEnded() bool { return s.leaving && (s.farewells == 0 || s.isSilent()) }

// change enters a state, and schedules a packet at once.
func (s *session) change(at time.Duration, to State, reason Diagnostic) {
	switch {
	case to == Up:
		s.ups++
		s.switchedOff = false
	case s.state == Up && s.remote != AdminDown && to != AdminDown:
		s.failures++
	}

	s.state, s.diagnostic = to, reason
	s.changedAt = at
	s.urgent = true
	s.apply(s.desiredInterval(), s.peer.Receive, to == Up)
	s.plan(at)
}

// receive processes a packet of the session (RFC 5880 section 6.8.6).
func (s *session) receive(at time.Duration, p packet) {
	if p.authenticated {
		s.authenticatedAt = at
		s.rejected++
		return
	}

	s.authenticatedAt = 0
	s.received++
	s.yourDiscr, s.remote, s.remoteDemand = p.myDiscr, p.state, p.demand
	s.remoteTransmit, s.remoteReceive, s.remoteMultiplier = p.transmit, p.receive, p.multiplier
	s.heardAt = at
	s.switchedOff = s.switchedOff || p.state == AdminDown
	if p.final {
		s.confirm()
	}

	s.transition(at, p.state)
	s.answer = s.answer || p.poll
	s.plan(at)
}

// transition runs the state machine of RFC 5880 section 6.8.6 for the neighbor's state.
func (s *session) transition(at time.Duration, remote State) {
	switch {
	case s.state == Down && remote == Down:
		s.change(at, Init, s.diagnostic)
	case s.state == Down && remote == Init, s.state == Init && remote >= Init:
		s.change(at, Up, NoDiagnostic)
	case s.state == Init && remote == AdminDown, s.state == Up && remote <= Down:
		s.change(at, Down, Signaled)
	}
}

// expire resets the neighbor's part of the session after the detection time (RFC 5880 sections 6.8.1 and 6.8.4).
func (s *session) expire(at time.Duration) {
	s.yourDiscr, s.remote, s.remoteDemand = 0, Down, false
	s.remoteReceive, s.remoteTransmit, s.remoteMultiplier = initialRemoteReceive, 0, 0
	if s.state >= Init {
		s.change(at, Down, Expired)
	}
	s.plan(at)
}

// never is the time of an event that is not scheduled.
const never time.Duration = math.MaxInt64

// expiresAt returns the end of the detection time; never if no packet is received.
func (s *session) expiresAt() time.Duration {
	if s.yourDiscr == 0 {
		return never
	}
	return s.heardAt + s.detection()
}

// isSilent reports whether this node must send no packet but a Final (RFC 5880 section 6.8.7).
func (s *session) isSilent() bool { return s.yourDiscr == 0 && s.peer.Passive || s.remoteReceive == 0 }

// isPeriodic reports whether this node sends periodic packets. It sends none to a neighbor in demand mode (RFC 5880
// section 6.6).
func (s *session) isPeriodic() bool {
	demand := s.remoteDemand && s.state == Up && s.remote == Up && !s.polling
	return !s.isSilent() && !demand && !s.hasEnded()
}

// plan chooses the time of the next periodic packet if the interval has changed.
func (s *session) plan(at time.Duration) {
	interval := s.interval()
	if interval != s.planned {
		s.planned = interval
		s.nextAt = max(at, s.sentAt+jittered(interval, s.peer.Multiplier, s.random()))
	}
}

// due returns the time at which tick must run next.
func (s *session) due(at time.Duration) time.Duration {
	switch {
	case s.answer, s.urgent && !s.isSilent():
		return at
	case s.isPeriodic():
		return min(s.nextAt, s.expiresAt())
	}

	return s.expiresAt()
}

// tick runs what is due, and reports whether the packet p must be sent.
func (s *session) tick(at time.Duration, p *packet) bool {
	if at >= s.expiresAt() {
		s.expire(at)
	}

	isUrgent := s.urgent && !s.isSilent()
	isPeriodicDue := s.isPeriodic() && at >= s.nextAt
	if !s.answer && !isUrgent && !isPeriodicDue {
		return false
	}

	*p = packet{
		diagnostic: s.diagnostic,
		state:      s.state,
		multiplier: s.peer.Multiplier,
		myDiscr:    s.myDiscr,
		yourDiscr:  s.yourDiscr,
		transmit:   s.desiredTransmit,
		receive:    s.requiredReceive,
		// A packet must not have both bits (RFC 5880 section 6.8.7).
		final: s.answer,
		poll:  s.polling && !s.answer,
	}

	s.sent++
	if s.answer {
		s.answer = false // a Final does not move the periodic packets (RFC 5880 section 6.8.7)
		return true
	}

	s.urgent = false
	s.sentAt = at
	s.nextAt = at + jittered(s.planned, s.peer.Multiplier, s.random())
	if s.farewells > 0 {
		s.farewells--
	}
	if s.farewells > 0 {
		s.nextAt = at + farewellInterval
	}
	return true
}

// status returns the status of the session.
func (s *session) status(at time.Duration) Status {
	out := Status{
		Name:        s.peer.Name,
		State:       s.state,
		Remote:      s.remote,
		Diagnostic:  s.diagnostic,
		SwitchedOff: s.switchedOff,
		Since:       at - s.changedAt,
		Ups:         s.ups,
		Failures:    s.failures,
		Transmit:    s.interval(),
		Sent:        s.sent,
		Received:    s.received,
		Rejected:    s.rejected,
		Refused:     s.trouble.refused,
		Error:       s.trouble.text,
	}
	if s.yourDiscr != 0 {
		out.Detection = s.detection()
	}

	authenticates := s.authenticatedAt != 0 && at < s.authenticatedAt+authenticatedTime
	if authenticates && s.state != Up && out.Error == "" {
		out.Error = "the neighbor authenticates its packets, which is not supported"
	}

	return out
}

// slowInterval is the shortest interval between packets while a session is not up (RFC 5880 section 6.8.3).
const slowInterval = time.Second

// timers are the intervals of both sides (RFC 5880 section 6.8.1), and the state of a Poll Sequence. A change that
// makes this node's packets rarer, or expects more of the neighbor's, is used only after the neighbor has confirmed it.
type timers struct {
	// desiredTransmit and requiredReceive are sent to the neighbor. Until it confirms them, older ones may be in use.
	desiredTransmit, transmitInUse time.Duration
	requiredReceive, receiveInUse  time.Duration
	// remoteTransmit, remoteReceive and remoteMultiplier are from the neighbor's last packet.
	remoteTransmit, remoteReceive time.Duration
	remoteMultiplier              uint8
	// polling reports whether the neighbor has not confirmed the intervals, and pollAgain whether they have changed
	// since the poll began.
	polling, pollAgain bool
}

// apply sets the desired intervals. If the session is not up they are used at once.
func (t *timers) apply(transmit, receive time.Duration, up bool) {
	if transmit == t.desiredTransmit && receive == t.requiredReceive {
		return
	}

	t.desiredTransmit, t.requiredReceive = transmit, receive
	if !up {
		t.settle()
		t.polling, t.pollAgain = false, false
		return
	}

	t.pollAgain = t.polling
	t.polling = true
	// RFC 5880 section 6.8.3: an increased transmission interval and a reduced receive interval wait for the Final.
	t.transmitInUse = min(t.transmitInUse, transmit)
	t.receiveInUse = max(t.receiveInUse, receive)
}

// settle uses the desired intervals.
func (t *timers) settle() { t.transmitInUse, t.receiveInUse = t.desiredTransmit, t.requiredReceive }

// confirm processes the Final bit. The Final of an earlier poll does not confirm a later one.
func (t *timers) confirm() {
	switch {
	case !t.polling:
	case t.pollAgain:
		t.pollAgain = false
	default:
		t.polling = false
		t.settle()
	}
}

// interval returns the interval between this node's packets, which both sides accept (RFC 5880 section 6.8.2).
func (t *timers) interval() time.Duration { return max(t.transmitInUse, t.remoteReceive) }

// detection returns the silence of the neighbor after which the session falls (RFC 5880 section 6.8.4). It uses the
// neighbor's multiplier.
func (t *timers) detection() time.Duration {
	return time.Duration(t.remoteMultiplier) * max(t.receiveInUse, t.remoteTransmit)
}

// jittered returns an interval reduced by 0 to 25 %, or by 10 to 25 % if the loss of one packet is a failure (RFC 5880
// section 6.8.7).
func jittered(interval time.Duration, multiplier uint8, random uint64) time.Duration {
	const steps = 1 << 16
	minCut, span := time.Duration(0), interval/4
	if multiplier == 1 {
		minCut = interval/10 + 1
		span -= minCut
	}
	return interval - minCut - span*time.Duration(random%steps)/steps
}
