package bfd

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

const (
	// singleHopTTL is the TTL of packets that this node sends. They arrive with it unless a router forwarded them (RFC
	// 5881 section 5).
	singleHopTTL = 255
	// maxPacketRate is the number of packets that all sessions together may send and receive in a second. It limits
	// their CPU time in a process with real-time priority.
	maxPacketRate = 6000
	// maxSessions limits the cost of a change of a timer, and the size of the socket filter.
	maxSessions = 256
)

// table is the set of all sessions. It has no clock and no sockets.
type table struct {
	random func() uint64
	// sessions are the desired sessions in the order of their names, then the leaving sessions.
	sessions []*session
	// byName has the desired sessions.
	byName map[string]*session
	// refused are the statuses of peers that have no session.
	refused []Status
	// version changes with every change of a state.
	version uint64
	// out is the buffer of tick, which must not allocate memory.
	out packet
}

// newTable returns a table without sessions. The argument is a source of unpredictable random numbers.
func newTable(random func() uint64) *table {
	return &table{random: random, byName: map[string]*session{}}
}

// set sets the desired sessions. The caller has checked that no two have the same neighbor. All other sessions leave:
// they report to their neighbors that they are switched off, and end.
func (t *table) set(at time.Duration, peers []Peer) {
	t.version++
	t.refused = nil
	wanted := map[string]*session{}
	rate := 0.
	peers = slices.SortedFunc(slices.Values(peers), func(a, b Peer) int { return cmp.Compare(a.Name, b.Name) })
	var sessions []*session
	for _, p := range peers {
		if err := checkLimits(len(sessions), rate+p.packetRate()); err != nil {
			refusal := Status{Name: p.Name, State: AdminDown, Remote: Down, Refused: true, Error: err.Error()}
			t.refused = append(t.refused, refusal)
			continue
		}

		rate += p.packetRate()
		s := t.byName[p.Name]
		if s == nil || !s.peer.isSameSession(p) {
			s = newSession(at, p, t.discriminator(sessions), t.random)
		}
		s.configure(at, p)
		wanted[p.Name] = s
		sessions = append(sessions, s)
	}

	for _, s := range t.sessions {
		if wanted[s.peer.Name] != s {
			s.leave(at)
			sessions = append(sessions, s)
		}
	}

	t.sessions, t.byName = sessions, wanted
}

// checkLimits returns an error if a node with these sessions must not have another, given the packet rate with it.
func checkLimits(sessions int, rate float64) error {
	switch {
	case sessions == maxSessions:
		return fmt.Errorf("the node has %d sessions already", maxSessions)
	case rate > maxPacketRate:
		return fmt.Errorf("all sessions of the node would take more than %d packets a second: choose longer intervals",
			maxPacketRate)
	}
	return nil
}

// isSameSession reports whether two peers mean one session. Their settings may differ.
func (p Peer) isSameSession(o Peer) bool {
	return p.Address == o.Address && p.Source == o.Source && p.Interface == o.Interface && p.MultiHop == o.MultiHop
}

// packetRate returns the number of packets that the session may send and receive in a second.
func (p Peer) packetRate() float64 { return 1/p.Transmit.Seconds() + 1/p.Receive.Seconds() }

// discriminator returns a random discriminator that no session has, including the new sessions.
func (t *table) discriminator(more []*session) uint32 {
	all := slices.Concat(t.sessions, more)
	for {
		d := uint32(t.random())
		isTaken := slices.ContainsFunc(all, func(s *session) bool { return s.myDiscr == d })
		if d != 0 && !isTaken {
			return d
		}
	}
}

// receive processes a datagram from the session's neighbor. The socket has checked its address, link and TTL. These
// identify the session if the packet has no Your Discriminator. A packet with another session's discriminator is
// rejected (RFC 5880 section 6.3, RFC 5881 section 3).
func (t *table) receive(at time.Duration, s *session, b []byte) {
	p, ok := parse(b)
	if !ok || s.leaving || p.yourDiscr != 0 && p.yourDiscr != s.myDiscr {
		s.rejected++
		return
	}

	before := s.state
	s.receive(at, p)
	if s.state != before {
		t.version++
	}
}

// minTTL returns the lowest TTL of an accepted packet, which shows that its sender is near (RFC 5881 section 5, RFC
// 5082).
func (s *session) minTTL() uint8 {
	if s.peer.MultiHop {
		return s.peer.MinimumTTL
	}
	return singleHopTTL
}

// tick runs what is due in all sessions, and calls send for each packet. It removes the sessions that have ended.
func (t *table) tick(at time.Duration, send func(*session, *packet)) {
	for _, s := range t.sessions {
		before := s.state
		// A Final and a periodic packet may be due at once.
		for s.tick(at, &t.out) {
			send(s, &t.out)
		}

		if s.state != before {
			t.version++
		}
	}

	t.sessions = slices.DeleteFunc(t.sessions, (*session).hasEnded)
}

// due returns the time at which tick must run next.
func (t *table) due(at time.Duration) time.Duration {
	next := never
	for _, s := range t.sessions {
		next = min(next, s.due(at))
	}
	return next
}

// statuses returns the statuses of all desired sessions.
func (t *table) statuses(at time.Duration) []Status {
	out := make([]Status, 0, len(t.byName)+len(t.refused))
	for _, s := range t.sessions {
		if !s.leaving {
			out = append(out, s.status(at))
		}
	}

	return append(out, t.refused...)
}
