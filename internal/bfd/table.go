package bfd

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

const (
	// singleHopTTL is what packets leave with, and arrive with unless a router forwarded them (RFC 5881 section 5).
	singleHopTTL = 255
	// mostPackets is how many packets all sessions together may send and receive in a second, which bounds the CPU time
	// that they take of a process with real-time priority.
	mostPackets = 6000
	// mostSessions bounds what one change of a timer costs, and the socket filter.
	mostSessions = 256
)

// table is the set of all sessions. It has no clock and no sockets.
type table struct {
	random func() uint64
	// sessions in the order of their names, then those that leave.
	sessions []*session
	byName   map[string]*session
	// refused are the statuses of peers that have no session.
	refused []Status
	// version changes with every change of a state.
	version uint64
	// out is the packet that is being sent: it needs no memory.
	out packet
}

func newTable(random func() uint64) *table {
	return &table{random: random, byName: map[string]*session{}}
}

// set makes these the wanted sessions, no two of which have one neighbor: the configuration was checked. Sessions that
// are not wanted say so to their neighbors before they end.
func (t *table) set(now time.Duration, peers []Peer) {
	t.version++
	t.refused = nil
	wanted := map[string]*session{}
	load := 0.
	peers = slices.SortedFunc(slices.Values(peers), func(a, b Peer) int { return cmp.Compare(a.Name, b.Name) })
	var rest []*session
	for _, p := range peers {
		why := ""
		switch {
		case len(rest) == mostSessions:
			why = fmt.Sprintf("the node has %d sessions already", mostSessions)
		case load+p.packets() > mostPackets:
			why = fmt.Sprintf(
				"all sessions of the node would take more than %d packets a second: choose longer intervals",
				mostPackets,
			)
		}

		if why != "" {
			t.refused = append(
				t.refused,
				Status{Name: p.Name, State: AdminDown, Remote: Down, Refused: true, Error: why},
			)

			continue
		}

		load += p.packets()
		s := t.byName[p.Name]
		if s == nil || !s.peer.same(p) {
			s = newSession(now, p, t.discriminator(rest), t.random)
		}

		s.configure(now, p)
		wanted[p.Name] = s
		rest = append(rest, s)
	}

	for _, s := range t.sessions {
		if wanted[s.peer.Name] != s {
			s.leave(now)
			rest = append(rest, s)
		}
	}

	t.sessions, t.byName = rest, wanted
}

// same reports whether both are one session, whose settings may differ.
func (p Peer) same(o Peer) bool {
	return p.Address == o.Address && p.Source == o.Source && p.Interface == o.Interface && p.MultiHop == o.MultiHop
}

// packets are how many the session sends and receives in a second at most.
func (p Peer) packets() float64 { return 1/p.Transmit.Seconds() + 1/p.Receive.Seconds() }

// discriminator returns one that no session has, new ones included, and nobody can guess.
func (t *table) discriminator(more []*session) uint32 {
	all := slices.Concat(t.sessions, more)
	for {
		if d := uint32(t.random()); d != 0 && !slices.ContainsFunc(all, func(s *session) bool { return s.mine == d }) {
			return d
		}
	}
}

// receive takes a datagram that the session's neighbor sent, as far as the socket knows: by its address and by how it
// came. One that names no discriminator of ours is the session's by that, and one that names another session's is
// nobody's (RFC 5880 section 6.3, RFC 5881 section 3).
func (t *table) receive(now time.Duration, s *session, b []byte) {
	p, ok := parse(b)
	if !ok || s.leaving || p.yours != 0 && p.yours != s.mine {
		s.rejected++
		return
	}

	before := s.state
	s.receive(now, p)
	if s.state != before {
		t.version++
	}
}

// minTTL is what a packet must arrive with, which shows that its sender is near enough (RFC 5881 section 5, RFC 5082).
func (s *session) minTTL() uint8 {
	if s.peer.MultiHop {
		return s.peer.MinimumTTL
	}
	return singleHopTTL
}

// tick does what is due, and passes what is to be sent.
func (t *table) tick(now time.Duration, send func(*session, *packet)) {
	for _, s := range t.sessions {
		before := s.state
		// An answer and a packet of another cause may be due at once.
		for s.tick(now, &t.out) {
			send(s, &t.out)
		}

		if s.state != before {
			t.version++
		}
	}

	t.sessions = slices.DeleteFunc(t.sessions, (*session).ended)
}

// due is when tick has something to do next.
func (t *table) due(now time.Duration) time.Duration {
	next := never
	for _, s := range t.sessions {
		next = min(next, s.due(now))
	}
	return next
}

// statuses returns what is known of all wanted sessions.
func (t *table) statuses(now time.Duration) []Status {
	out := make([]Status, 0, len(t.byName)+len(t.refused))
	for _, s := range t.sessions {
		if !s.leaving {
			out = append(out, s.status(now))
		}
	}

	return append(out, t.refused...)
}
