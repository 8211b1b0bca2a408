package bfd

import (
	"math"
	"time"
)

const (
	// farewells are how many packets tell the neighbor at once that the session is switched off: each may be lost, and
	// the next regular one is a second away.
	farewells        = 3
	farewellInterval = 10 * time.Millisecond
	// authenticatedTime is how long a packet with an authentication section is held against the neighbor: a neighbor
	// sends one each second at least.
	authenticatedTime = 5 * slowInterval
	// initialRemoteReceive is bfd.RemoteMinRxInterval before the neighbor told its own (RFC 5880 section 6.8.1).
	initialRemoteReceive = time.Microsecond
)

// session is the state machine of one session (RFC 5880 section 6.8). It has no clock and sends nothing by itself.
type session struct {
	peer   Peer
	random func() uint64
	timers
	// mine and yours are the discriminators of both sides; yours is 0 while the neighbor is not heard.
	mine, yours uint32
	// state is ours, remote the neighbor's.
	state, remote State
	diagnostic    Diagnostic
	remoteDemand  bool
	// switchedOff: the neighbor switched the session off since it was up last.
	switchedOff bool

	changedAt, heardAt, sentAt time.Duration
	// nextAt is when the next periodic packet is due, which was chosen for the interval planned.
	nextAt, planned time.Duration
	// urgent: the neighbor should know at once what changed; answer: it polls, and gets a Final.
	urgent, answer bool
	// farewells are still to be sent; leaving: the session ends with the last one.
	farewells int
	leaving   bool

	ups, failures, sent, received, rejected uint64
	// authenticatedAt is when the last packet with an authentication section came, zero for none since an acceptable
	// one.
	authenticatedAt time.Duration
	// trouble is why the session cannot send or hear.
	trouble trouble
}

func newSession(now time.Duration, p Peer, mine uint32, random func() uint64) *session {
	s := &session{peer: p, random: random, mine: mine, state: Down, remote: Down, changedAt: now, nextAt: now}
	s.remoteReceive = initialRemoteReceive
	return s
}

// configure takes over what may change while a session runs.
func (s *session) configure(now time.Duration, p Peer) {
	s.peer = p
	s.apply(s.wish(), p.Receive, s.state == Up)
	s.plan(now)
}

// wish is bfd.DesiredMinTxInterval: slow until the session is up (RFC 5880 section 6.8.3).
func (s *session) wish() time.Duration {
	if s.state != Up {
		return max(s.peer.Transmit, slowInterval)
	}
	return s.peer.Transmit
}

// leave switches the session off for good, without a failure (RFC 5880 section 6.8.16).
func (s *session) leave(now time.Duration) {
	if s.leaving {
		return
	}

	s.leaving = true
	s.change(now, AdminDown, SwitchedOff)
	if s.yours != 0 {
		s.farewells = farewells
	}
}

func (s *session) ended() bool { return s.leaving && (s.farewells == 0 || s.silent()) }

// change enters a state, of which the neighbor should know at once.
func (s *session) change(now time.Duration, to State, why Diagnostic) {
	switch {
	case to == Up:
		s.ups++
		s.switchedOff = false
	case s.state == Up && s.remote != AdminDown && to != AdminDown:
		s.failures++
	}

	s.state, s.diagnostic, s.changedAt, s.urgent = to, why, now, true
	s.apply(s.wish(), s.peer.Receive, to == Up)
	s.plan(now)
}

// receive takes a packet that is the session's (RFC 5880 section 6.8.6).
func (s *session) receive(now time.Duration, p packet) {
	if p.authenticated {
		s.authenticatedAt = now
		s.rejected++
		return
	}

	s.authenticatedAt = 0
	s.received++
	s.yours, s.remote, s.remoteDemand = p.mine, p.state, p.demand
	s.remoteTransmit, s.remoteReceive, s.remoteMultiplier = p.transmit, p.receive, p.multiplier
	s.heardAt = now
	s.switchedOff = s.switchedOff || p.state == AdminDown
	if p.final {
		s.confirmed()
	}

	s.follow(now, p.state)
	s.answer = s.answer || p.poll
	s.plan(now)
}

// follow is the state machine of RFC 5880 section 6.8.6.
func (s *session) follow(now time.Duration, remote State) {
	switch {
	case s.state == Down && remote == Down:
		s.change(now, Init, s.diagnostic)
	case s.state == Down && remote == Init, s.state == Init && remote >= Init:
		s.change(now, Up, NoDiagnostic)
	case s.state == Init && remote == AdminDown, s.state == Up && remote <= Down:
		s.change(now, Down, Signaled)
	}
}

// expire: nothing was heard for the detection time (RFC 5880 sections 6.8.1 and 6.8.4).
func (s *session) expire(now time.Duration) {
	s.yours, s.remote, s.remoteDemand = 0, Down, false
	s.remoteReceive, s.remoteTransmit, s.remoteMultiplier = initialRemoteReceive, 0, 0
	if s.state >= Init {
		s.change(now, Down, Expired)
	}
	s.plan(now)
}

// never is when nothing is due.
const never time.Duration = math.MaxInt64

// expiresAt is when the neighbor is given up, if it is heard.
func (s *session) expiresAt() time.Duration {
	if s.yours == 0 {
		return never
	}
	return s.heardAt + s.detection()
}

// silent: the neighbor wants no packets, except for a Final (RFC 5880 section 6.8.7).
func (s *session) silent() bool { return s.yours == 0 && s.peer.Passive || s.remoteReceive == 0 }

// periodic reports whether packets go out without a cause. A neighbor in demand mode wants none (RFC 5880 section 6.6).
func (s *session) periodic() bool {
	demand := s.remoteDemand && s.state == Up && s.remote == Up && !s.polling
	return !s.silent() && !demand && !s.ended()
}

// plan chooses the time of the next periodic packet, if the interval is another one than before.
func (s *session) plan(now time.Duration) {
	if in := s.interval(); in != s.planned {
		s.planned = in
		s.nextAt = max(now, s.sentAt+jittered(in, s.peer.Multiplier, s.random()))
	}
}

// due is when tick has something to do.
func (s *session) due(now time.Duration) time.Duration {
	switch {
	case s.answer, s.urgent && !s.silent():
		return now
	case s.periodic():
		return min(s.nextAt, s.expiresAt())
	}

	return s.expiresAt()
}

// tick does what is due, and reports whether p is to be sent.
func (s *session) tick(now time.Duration, p *packet) bool {
	if now >= s.expiresAt() {
		s.expire(now)
	}

	if !s.answer && !(s.urgent && !s.silent()) && !(s.periodic() && now >= s.nextAt) {
		return false
	}

	*p = packet{
		diagnostic: s.diagnostic, state: s.state, multiplier: s.peer.Multiplier, mine: s.mine, yours: s.yours,
		transmit: s.desiredTransmit, receive: s.requiredReceive,
		// Never both (RFC 5880 section 6.8.7).
		final: s.answer, poll: s.polling && !s.answer,
	}

	s.sent++
	if s.answer {
		s.answer = false // which does not move the periodic packets (RFC 5880 section 6.8.7)
		return true
	}

	s.urgent, s.sentAt = false, now
	s.nextAt = now + jittered(s.planned, s.peer.Multiplier, s.random())
	if s.farewells--; s.farewells > 0 {
		s.nextAt = now + farewellInterval
	}

	s.farewells = max(s.farewells, 0)
	return true
}

// status is what is known at this moment.
func (s *session) status(now time.Duration) Status {
	out := Status{
		Name: s.peer.Name, State: s.state, Remote: s.remote, Diagnostic: s.diagnostic,
		SwitchedOff: s.switchedOff, Since: now - s.changedAt, Ups: s.ups, Failures: s.failures, Transmit: s.interval(),
		Sent: s.sent, Received: s.received, Rejected: s.rejected, Refused: s.trouble.refused, Error: s.trouble.text,
	}
	if s.yours != 0 {
		out.Detection = s.detection()
	}

	// What one packet said is forgotten when a neighbor would have said it again.
	if s.authenticatedAt != 0 && now < s.authenticatedAt+authenticatedTime && s.state != Up && out.Error == "" {
		out.Error = "the neighbor authenticates its packets, which is not supported"
	}

	return out
}

// slowInterval is the least interval of packets while a session is not up (RFC 5880 section 6.8.3).
const slowInterval = time.Second

// timers are the intervals of both sides (RFC 5880 section 6.8.1), and what Poll Sequences are for: a change that makes
// packets rarer, or expects more of them, counts only after the neighbor has confirmed it.
type timers struct {
	// desiredTransmit and requiredReceive are told the neighbor; those in use may still be the ones before.
	desiredTransmit, transmitInUse time.Duration
	requiredReceive, receiveInUse  time.Duration
	// What the neighbor told last.
	remoteTransmit, remoteReceive time.Duration
	remoteMultiplier              uint8
	// polling: the neighbor has not confirmed the intervals; pollAgain: they changed since the poll began.
	polling, pollAgain bool
}

// apply takes over intervals. Those of a session that is not up count at once: nothing depends on them.
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

func (t *timers) settle() { t.transmitInUse, t.receiveInUse = t.desiredTransmit, t.requiredReceive }

// confirmed is called for a packet with the Final bit. The Final of an earlier poll confirms nothing of a later one.
func (t *timers) confirmed() {
	switch {
	case !t.polling:
	case t.pollAgain:
		t.pollAgain = false
	default:
		t.polling = false
		t.settle()
	}
}

// interval is that of our packets: what both sides accept (RFC 5880 section 6.8.2).
func (t *timers) interval() time.Duration { return max(t.transmitInUse, t.remoteReceive) }

// detection is the silence of the neighbor after which it is gone (RFC 5880 section 6.8.4): its multiplier counts,
// since it is the one that knows how often it sends.
func (t *timers) detection() time.Duration {
	return time.Duration(t.remoteMultiplier) * max(t.receiveInUse, t.remoteTransmit)
}

// jittered is an interval less 0 to 25 %, and 10 to 25 % if one lost packet is a failure (RFC 5880 section 6.8.7).
func jittered(interval time.Duration, multiplier uint8, random uint64) time.Duration {
	const steps = 1 << 16
	least, span := time.Duration(0), interval/4
	if multiplier == 1 {
		least, span = interval/10+1, interval/4-interval/10-1
	}
	return interval - least - span*time.Duration(random%steps)/steps
}
