package bfd

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/rt"
)

// leastInterval is the shortest of a BFDProfile.
const leastInterval = 10 * time.Millisecond

func good() Peer {
	return Peer{Name: "a", Address: addressB, Transmit: 300 * time.Millisecond, Receive: 300 * time.Millisecond, Multiplier: 3}
}

// A peer whose packets could not be told from those of another is refused by a sentence, and the other one runs.
func TestSetRefuses(t *testing.T) {
	for want, change := range map[string]func(*Peer){
		"":                                  func(*Peer) {},
		"peer 0 has a session with":         func(p *Peer) { p.Address = addressA },
		"peer 0 has a session with 192.0.2": func(p *Peer) { p.Address, p.Interface = addressA, "eth0" },
	} {
		w := newWorld(t, 1)
		p := good()
		change(&p)
		w.ends[0].table.set(w.now, []Peer{p, {Name: "0", Address: addressA, Transmit: time.Second, Receive: time.Second, Multiplier: 1}})
		for _, s := range w.ends[0].table.statuses(w.now) {
			if s.Name == "0" && s.Error != "" || s.Name == "a" && (!strings.Contains(s.Error, want) || (want == "") != (s.Error == "")) {
				t.Errorf("%s: %q, want %q", s.Name, s.Error, want)
			}
		}
		if n, refused := len(w.ends[0].table.sessions), len(w.ends[0].table.refused); n+refused != 2 {
			t.Errorf("%d sessions and %d refused", n, refused)
		}
	}
}

// All sessions together have a bounded cost; those beyond it are refused and the others keep running.
func TestSetBounds(t *testing.T) {
	for interval, want := range map[time.Duration]int{leastInterval: mostPackets / 200, time.Second: mostSessions} {
		w := newWorld(t, 1)
		var peers []Peer
		for i := range 300 {
			p := good()
			p.Name, p.Address = fmt.Sprintf("%03d", i), netip.AddrFrom4([4]byte{10, 0, byte(i / 256), byte(i)})
			p.Transmit, p.Receive = interval, interval
			peers = append(peers, p)
		}
		table := w.ends[0].table
		table.set(w.now, peers)
		if n := len(table.sessions); n != want || len(table.refused) != len(peers)-want {
			t.Errorf("%v: %d sessions, want %d", interval, n, want)
		}
		mine := table.byName["000"].mine
		table.set(w.now, peers)
		if len(table.sessions) != want || table.byName["000"].mine != mine {
			t.Errorf("%v: the same again changed the sessions", interval)
		}
	}
}

// BenchmarkTick is one round of a table with many sessions of which none is due.
func BenchmarkTick(b *testing.B) {
	table := newTable(rt.Random)
	var peers []Peer
	for i := range mostSessions {
		p := good()
		p.Name, p.Address = fmt.Sprint(i), netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		p.Transmit, p.Receive = time.Second, time.Second
		peers = append(peers, p)
	}
	table.set(0, peers)
	table.tick(0, func(*session, *packet) {})
	b.ReportAllocs()
	for b.Loop() {
		table.tick(1, func(*session, *packet) {})
		table.due(1)
	}
}
