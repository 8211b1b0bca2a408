package relay

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// shortIdle is the idle time in these tests: longer than a busy machine keeps a test from using a relay.
const shortIdle = 3 * time.Second

// idleWorld is a world whose relays end soon.
func idleWorld(t *testing.T) *world {
	w := newWorld(t)
	w.relayer = w.another(shortIdle)
	w.serve()
	w.owner(w.former)
	return w
}

// another returns a Relayer as of another process.
func (w *world) another(idle time.Duration) *Relayer {
	return New(Config{Log: testLog(w.t), Links: w.links, IdleTime: idle})
}

// since is when the addresses move here.
func (w *world) since(start time.Time) Desired {
	return w.desired().changed(func(r *lb.Relay) { r.Start = start })
}

// ended waits until the relays of both addresses have ended.
func (w *world) ended(r *Relayer) {
	w.t.Helper()
	nstest.Until(w.t, 10*shortIdle, "the relays end", func() bool { return len(r.Ended()) == len(vips) })
	for _, f := range r.State().Families {
		if f.Relayed != 0 {
			w.t.Errorf("%s: %d addresses count as relayed", f.Family, f.Relayed)
		}
	}
	for a, is := range r.Inherited() {
		if !is.Ended {
			w.t.Errorf("%s is relayed by the kernel", a)
		}
	}
}

// TestUnusedEnds: a relay ends when it is unused, and begins again only when the address moves again.
func TestUnusedEnds(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := idleWorld(t)
		open := w.connections(2)
		nstest.Running(t, w.relayer.Run)
		start := time.Now()
		w.relayer.Set(w.since(start))
		w.owner(w.node)
		w.ended(w.relayer)
		if got := w.relayer.Ended()[addr(vip4)]; !got.Equal(start) {
			t.Errorf("the relay that ended began at %v, not %v", got, start)
		}
		if s := w.relayer.State().Relays; len(s) > 0 {
			t.Errorf("in force: %v", s)
		}
		packets := w.packets()
		for _, vip := range vips {
			if n := w.alive(open[vip][:1]); n != 0 {
				t.Errorf("%s: relayed after its end", vip)
			}
		}
		d := w.since(start)
		d.Expect = true // anything that changes makes the kernel's tables be looked at
		w.relayer.Set(d)
		w.node.Output("nft", "delete table ip holdfast-relay; flush map ip6 holdfast-relay relays")
		nstest.Until(t, patient, "the tables are repaired", func() bool { return w.relayer.repairs() >= 2 })
		if got := len(w.relayer.Ended()); got != len(vips) || fmt.Sprint(w.packets()) != fmt.Sprint([]uint64{0, packets[1]}) {
			t.Errorf("a relay that ended has begun: %d ended, packets %v, then %v", got, packets, w.packets())
		}

		w.owner(w.former)
		again := w.connections(1)
		w.relayer.Set(w.since(time.Now()))
		w.owner(w.node)
		w.allAlive(again)
		if n := len(w.relayer.Ended()); n != 0 {
			t.Errorf("%d relays count as ended when their addresses moved again", n)
		}
	})
}

// TestUsedLasts: a relay lasts as long as connections use it, whatever else changes, also without a speaker and under
// the next one.
func TestUsedLasts(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := idleWorld(t)
		open := w.connections(1)
		stop := nstest.Running(t, w.relayer.Run)
		w.relayer.Set(w.since(time.Now()))
		w.owner(w.node)
		use := func(when string) {
			t.Helper()
			for from := time.Now(); time.Since(from) < shortIdle+shortIdle/4; {
				for _, vip := range vips {
					if w.alive(open[vip]) != 1 {
						t.Fatalf("%s: the relay of %s ended in use", when, vip)
					}
				}
			}
		}
		use("with its speaker")
		if got := w.relayer.Ended(); len(got) != 0 {
			t.Errorf("%v count as ended", got)
		}
		stop()
		use("without a speaker")
		next := w.another(shortIdle)
		nstest.Running(t, next.Run)
		next.Set(w.desired())
		use("with the next speaker")
		if n := next.repairs() + w.relayer.repairs(); n != 0 {
			t.Errorf("%d repairs", n)
		}
	})
}

// TestEndsDoNotKeep: FIN and RST keep no relay, and nor do errors: they come long after the connection, or from a scan.
func TestEndsDoNotKeep(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := idleWorld(t)
		w.owner(w.node)
		nstest.Running(t, w.relayer.Run)
		w.relayer.Set(w.since(time.Now()))
		before := w.packets()
		nstest.Until(t, 10*shortIdle, "the relays end under resets", func() bool {
			for _, vip := range vips {
				w.segment(vip, 50000, 0, tcpRST)
			}
			return len(w.relayer.Ended()) == len(vips)
		})
		for i, n := range w.packets() {
			if n == before[i] {
				t.Error("no reset was relayed before the end")
			}
		}
	})
}

// TestEndedStays: the next speaker neither revives what ended nor loses what did not.
func TestEndedStays(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := idleWorld(t)
		open := w.connections(1)
		stop := nstest.Running(t, w.relayer.Run)
		w.relayer.Set(w.since(time.Now()))
		w.owner(w.node)
		nstest.Until(t, 10*shortIdle, "the unused relay ends", func() bool {
			if w.alive(open[vip6]) != 1 {
				t.Fatal("the other one ended in use")
			}
			_, ended := w.relayer.Ended()[addr(vip4)]
			return ended
		})
		stop()
		next := w.another(shortIdle)
		want := map[netip.Addr]bool{addr(vip4): true, addr(vip6): false}
		for a, is := range next.Inherited() {
			if is.Ended != want[a] || !is.Via.IsValid() {
				t.Errorf("%s is inherited as %+v", a, is)
			}
		}
		nstest.Running(t, next.Run)
		next.Set(w.desired())
		if got := next.Inherited(); !got[addr(vip4)].Ended || got[addr(vip6)].Ended || len(got) != 2 {
			t.Errorf("then there are %+v", got)
		}
		if got := next.Ended(); len(got) != 1 || !got[addr(vip4)].IsZero() {
			t.Errorf("to the next speaker %v have ended", got)
		}
		if w.alive(open[vip6]) != 1 {
			t.Error("the other one is lost")
		}
		if n := w.alive(open[vip4]); n != 0 {
			t.Error("the relay that ended has begun again")
		}
		next.Set(w.since(time.Now()))
		if got := next.Inherited(); got[addr(vip4)].Ended || got[addr(vip6)].Ended {
			t.Errorf("when the address moved again there are %+v", got)
		}
	})
}

// TestOtherVia: a former owner that changes its address is relayed to there at once, for as long as the relay had left,
// and an ended relay does not begin by that.
func TestOtherVia(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.relayer = w.another(shortIdle)
		nstest.Running(t, w.relayer.Run)
		d := w.since(time.Now())
		w.relayer.Set(d)
		vias := func(via4, via6 string) {
			t.Helper()
			w.relayer.Set(d.changed(func(r *lb.Relay) {
				if r.Via = addr(via6); r.Address.Is4() {
					r.Via = addr(via4)
				}
			}))
			nstest.Until(t, patient, "relays lead to another address", func() bool {
				got := w.relayer.Inherited()
				return got[addr(vip4)].Via == addr(via4) && got[addr(vip6)].Via == addr(via6)
			})
		}
		for i := 0; len(w.relayer.Ended()) == 0; i++ {
			vias(fmt.Sprint("192.0.2.", 20+i%100), fmt.Sprint("fe80::", 20+i%100))
		}
		w.ended(w.relayer)
		vias("192.0.2.200", "fe80::200")
		w.ended(w.relayer)
		if n := w.relayer.repairs(); n != 0 {
			t.Errorf("%d repairs", n)
		}
	})
}
