package bfd

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

var (
	addressA = netip.MustParseAddr("192.0.2.1")
	addressB = netip.MustParseAddr("192.0.2.2")
)

// world is two tables and the network between them, on virtual time.
type world struct {
	t      *testing.T
	at     time.Duration
	random *rand.Rand
	ends   [2]*end
	// delay of each packet, and up to so much more, so that packets overtake each other.
	delay, spread time.Duration
	// loss is how many of 100 packets are lost.
	loss uint64
	wire []flight
}

// end is one of the systems.
type end struct {
	table   *table
	address netip.Addr
	// deaf loses what comes to it; frozen does nothing.
	deaf, frozen bool
	// sent are the times and packets that it sent.
	sent []flight
	// taken is what the network delivered while it was frozen, as in a socket's buffer.
	taken []flight
}

type flight struct {
	at, from time.Duration
	to       int
	packet   packet
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 1)), delay: time.Millisecond, at: time.Hour}
	for i, a := range []netip.Addr{addressA, addressB} {
		w.ends[i] = &end{table: newTable(w.random.Uint64), address: a}
	}
	return w
}

// peerOf returns the settings of an end: 50 ms, three times.
func (w *world) peerOf(i int) Peer {
	return Peer{
		Name: "other", Address: w.ends[1-i].address, Transmit: 50 * time.Millisecond, Receive: 50 * time.Millisecond,
		Multiplier: 3,
	}
}

func (w *world) set(i int, change ...func(*Peer)) {
	p := w.peerOf(i)
	for _, c := range change {
		c(&p)
	}
	w.ends[i].table.set(w.at, []Peer{p})
}

// both starts both ends.
func (w *world) both() {
	w.set(0)
	w.set(1)
}

// run lets time pass.
func (w *world) run(d time.Duration) {
	for end := w.at + d; ; {
		next := end
		for _, f := range w.wire {
			next = min(next, f.at)
		}
		for _, e := range w.ends {
			if !e.frozen {
				next = min(next, max(e.table.due(w.at), w.at))
			}
		}
		w.at = next
		w.deliver()
		for i := range w.ends {
			w.tick(i)
		}
		if w.at >= end {
			return
		}
	}
}

// until lets time pass until ok, for d at most, and returns how much it was.
func (w *world) until(d time.Duration, what string, ok func() bool) time.Duration {
	w.t.Helper()
	began := w.at
	for !ok() {
		if w.at-began >= d {
			w.t.Fatalf("after %v not: %s\n%+v\n%+v", d, what, w.status(0), w.status(1))
		}
		w.run(time.Millisecond)
	}
	return w.at - began
}

func (w *world) deliver() {
	for _, f := range w.wire {
		if e := w.ends[f.to]; f.at <= w.at && !e.deaf {
			e.taken = append(e.taken, f)
		}
	}
	w.wire = slices.DeleteFunc(w.wire, func(f flight) bool { return f.at <= w.at })
}

// tick is what a thread does: it reads what came, then does what is due.
func (w *world) tick(i int) {
	e := w.ends[i]
	if e.frozen {
		return
	}
	for _, f := range e.taken {
		var b [packetLen]byte
		f.packet.marshal(&b)
		if s := e.table.byName["other"]; s != nil {
			e.table.receive(w.at, s, b[:])
		}
	}
	e.taken = nil
	e.table.tick(w.at, func(_ *session, p *packet) {
		f := flight{at: w.at + w.delay, from: w.at, to: 1 - i, packet: *p}
		if w.spread > 0 {
			f.at += time.Duration(w.random.Uint64N(uint64(w.spread)))
		}
		e.sent = append(e.sent, f)
		if w.random.Uint64N(100) >= w.loss {
			w.wire = append(w.wire, f)
		}
	})
}

// status is what an end knows of its first session.
func (w *world) status(i int) Status {
	all := w.ends[i].table.statuses(w.at)
	if len(all) == 0 {
		return Status{}
	}
	return all[0]
}

func (w *world) session(i int) *session { return w.ends[i].table.byName["other"] }

func (w *world) hasState(i int, s State) func() bool {
	return func() bool { return w.status(i).State == s }
}

func (w *world) up() {
	w.t.Helper()
	w.until(5*time.Second, "both ends are up", func() bool { return w.hasState(0, Up)() && w.hasState(1, Up)() })
}

// settled waits until both also use their intervals.
func (w *world) settled() {
	w.t.Helper()
	w.up()
	w.until(5*time.Second, "both ends have negotiated", func() bool {
		return !w.session(0).polling && !w.session(1).polling
	})
	w.run(time.Second)
}

func (w *world) want(i int, state, remote State, why Diagnostic) {
	w.t.Helper()
	if s := w.status(i); s.State != state || s.Remote != remote || s.Diagnostic != why {
		w.t.Errorf("end %d is %v (%v), sees the neighbor as %v; want %v (%v), %v", i, s.State, s.Diagnostic, s.Remote, state,
			why, remote)
	}
}

// seeds runs a test on several networks.
func seeds(t *testing.T, n int, fn func(t *testing.T, seed uint64)) {
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { fn(t, uint64(seed)) })
	}
}

var must = nstest.Must

// settled is a world in which both ends have a session that is up.
func settled(t *testing.T, seed uint64) *world {
	t.Helper()
	w := newWorld(t, seed)
	w.both()
	w.settled()
	return w
}
