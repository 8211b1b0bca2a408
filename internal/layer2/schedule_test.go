package layer2

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// sentFor collects the frames sent in this time, a line for each with time and content.
func sentFor(l *fakeLAN, d time.Duration) []string {
	start := time.Now()
	var got []string
	for f := range l.frames(d) {
		what := strings.Fields(describe(f))
		kind := what[1] + " " + what[2]
		if what[1] != "ARP" {
			kind = "NA"
		}
		got = append(got, fmt.Sprintf("%v %s", time.Since(start).Round(time.Millisecond), kind))
	}
	return got
}

// By default a new address of either family is announced at once, repeatedly, and
// then periodically.
//
// Traps: gratuitous ARP and unsolicited NA off by default (PureLB), or sent only once
// (OpenELB).
func TestAnnounceTimes(t *testing.T) {
	for _, tt := range []struct {
		addr   netip.Addr
		frames []string
	}{
		{v4, []string{"ARP 1", "ARP 2"}},
		{v6, []string{"NA"}},
	} {
		runPlay(t, nil, func(p *play) {
			p.Set(Desired{Announcements: announcing([]lb.Announcement{{Address: tt.addr}})})
			var want []string
			for i, at := range []string{"0s", "1s", "2s", "4s", "8s", "16s", "32s"} {
				want = append(want, at+" "+tt.frames[i%len(tt.frames)])
			}
			want = slices.Insert(want, 4, "5s "+tt.frames[0]) // the duplicate check
			if diff := cmp.Diff(want, sentFor(p.lan, 61*time.Second)); diff != "" {
				t.Errorf("%v (-want +got):\n%s", tt.addr, diff)
			}
		})
		runPlay(t, nil, func(p *play) {
			p.settle(Desired{Announcements: announcing([]lb.Announcement{{Address: tt.addr, Probe: true}})},
				p.config.Timers.AnnounceWait-time.Millisecond)
			odd, even := tt.frames[0], tt.frames[len(tt.frames)-1]
			// The duplicate check comes after 5 s.
			want := []string{"1ms " + odd, "2.001s " + even, "5.201s " + odd, "8.001s " + odd, "32.001s " + even}
			if diff := cmp.Diff(want, sentFor(p.lan, 61*time.Second)); diff != "" {
				t.Errorf("%v, probed (-want +got):\n%s", tt.addr, diff)
			}
		})
	}
}

// The slow refresh follows the last announcement after a random time from RefreshMin to
// RefreshMax: switches relearn the MAC, and addresses do not stay in step.
//
// Trap: no announcement after the first seconds, although switches forget
// (OpenELB; MetalLB #2981).
func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := newFakeLAN(eth0)
		r := lan.responder()
		r.system.random = randomBetween
		defer run(t, r)()
		r.Set(Desired{Announcements: announcing(ourAnnouncements)})
		sentFor(lan, 45*time.Second)
		var last time.Duration
		gaps := map[time.Duration]bool{}
		for _, line := range sentFor(lan, 20*time.Minute) {
			if strings.HasSuffix(line, "ARP 2") {
				t.Errorf("refreshed by a reply, which no speaker audits: %s", line)
			}
			if !strings.HasSuffix(line, "NA") {
				continue
			}
			at, err := time.ParseDuration(strings.Fields(line)[0])
			must(t, err)
			if gap := at - last; last > 0 &&
				(gap < r.config.Timers.RefreshMin || gap > r.config.Timers.RefreshMax+refreshBatch+time.Millisecond) {
				t.Errorf("%v between two announcements", gap)
			} else if last > 0 {
				gaps[gap] = true
			}
			last = at
		}
		if len(gaps) < 10 {
			t.Errorf("%d different gaps in 20 minutes", len(gaps))
		}
	})
}

// In quiet times a link gets 50 announcements a second at most, and every address its turn. Few addresses keep their
// pace.
//
// Trap: 10,000 dual-stack addresses make some hundred broadcasts a second to every host, for ever.
func TestRefreshOfMany(t *testing.T) {
	for _, tt := range []struct{ addresses, maxPerSecond int }{{20_000, quietRate}, {1000, 1000/45 + 1}, {1, 1}} {
		timers := Timers{}.withDefaults()
		at := time.Unix(0, 0)
		timers.Rate = 1_000_000 // not what is tested
		s := newSchedule(timers, &rateLimit{}, randomBetween)
		ownedJob, gone := job{phase: owned, status: newStatus(owned)}, netip.MustParseAddr("2001:db8:2::")
		addr := netip.MustParseAddr("2001:db8:1::")
		for range tt.addresses {
			addr = addr.Next()
			s.setJob(addr, ownedJob, at)
		}
		s.setJob(gone, ownedJob, at)
		s.remove(gone)
		last := map[netip.Addr]bool{}
		sent := 0
		do := func() {
			for it := s.nextDue(at); it != nil; it = s.nextDue(at) {
				sent++
				last[it.addr] = true
				s.complete(it, at)
			}
		}
		for range 60 {
			at = at.Add(time.Second)
			do()
		}
		sent = 0
		clear(last)
		_, longest := timers.refresh(tt.addresses)
		for end := at.Add(2 * longest); at.Before(end); at = at.Add(time.Second) {
			do()
		}
		perSecond := float64(sent) / (2 * longest).Seconds()
		if perSecond > 1.1*float64(tt.maxPerSecond) || len(last) < tt.addresses {
			t.Errorf("%d addresses: %.1f a second, want %d; %d had their turn", tt.addresses, perSecond, tt.maxPerSecond,
				len(last))
		}
	}
}

// Later announcements wake the process five times a second at most, however many addresses there are, and fall behind
// by no more than that.
func TestRefreshTogether(t *testing.T) {
	timers := Timers{}.withDefaults()
	at := time.Unix(0, 0)
	s := newSchedule(timers, &rateLimit{}, randomBetween)
	for _, a := range manyAddresses(3000) {
		s.setJob(a.Address, job{phase: owned, status: newStatus(owned)}, at)
	}
	wakes, sent := 0, 0
	quiet := at.Add(5 * time.Minute) // past the first announcements
	for end := quiet.Add(5 * time.Minute); at.Before(end); {
		at = at.Add(s.untilNext(at))
		if at.After(quiet) {
			wakes++
		}
		for it := s.nextDue(at); it != nil; it = s.nextDue(at) {
			if it.purpose != steps {
				s.complete(it, at)
				continue
			}
			if at.After(quiet) {
				sent++
				if late := at.Sub(it.due); late > 2*refreshBatch {
					t.Fatalf("%v is announced again %v late", it.addr, late)
				}
			}
			lane := it.lane
			s.complete(it, at)
			s.spend(1, lane, at)
		}
	}
	if perSecond := float64(wakes) / 300; perSecond > 5 || sent < 45*300 {
		t.Errorf("%.1f wakes a second for %d announcements in 300 s, want at most 5, for 50 a second", perSecond, sent)
	}
}

// announced is when the first announcements of an address are over.
const announced = 33 * time.Second

// Trap: every sync of a Service announces its addresses again, changed or not (MetalLB).
func TestSetTwiceIsSilent(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		p.settle(Desired{Announcements: announcing(ourAnnouncements)}, announced)
		p.Set(Desired{Announcements: announcing(ourAnnouncements)})
		p.Kick()
		if got := sentFor(p.lan, 28*time.Second); got != nil || p.lan.opened != protocolCount {
			t.Errorf("sent %v, opened %d wires", got, p.lan.opened)
		}
	})
}

// After each change of a link the addresses are announced on it again at once or not,
// and their groups are joined wherever they are answered.
//
// Traps: an address vanishes and is not announced again (kube-vip #475, #1377, #1747,
// #1786; Cilium #26586, #48626; loxilb #887); answers have the old MAC of a link; a link
// that appears later lacks its groups (MetalLB).
func TestAnnouncedAnew(t *testing.T) {
	changed := eth0
	changed.MAC = otherMAC
	renamed := eth0
	renamed.Name = "lan0"
	remade := eth0
	remade.Index = 9
	down := eth0
	down.Up = false
	for _, tt := range []struct {
		name string
		do   func(p *play)
		want int
		// repaired is the kind of repair that counts one, or repairs for none.
		repaired int
	}{
		{"nothing", func(p *play) { p.links(eth0) }, 0, repairs},
		{"new MAC", func(p *play) { p.links(changed) }, 2, repairMAC},
		{"new name", func(p *play) { p.links(renamed) }, 0, repairLink},
		{"recreated", func(p *play) { p.links(remade) }, 2, repairLink},
		{"one more link", func(p *play) { p.links(eth0, eth1) }, 2, repairs},
		{"gone", func(p *play) { p.links() }, 0, repairs},
		{"down and up", func(p *play) { p.links(down); p.links(eth0) }, 2, repairLink},
		{"socket broken", func(p *play) { p.lan.conn("eth0", p.protocols[1]).Close() }, 2, repairSocket},
		{"removed and set again", func(p *play) {
			p.Set(Desired{})
			synctest.Wait()
			p.Set(Desired{Announcements: announcing(ourAnnouncements)})
		}, 2, repairs},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runPlay(t, nil, func(p *play) {
				p.settle(Desired{Announcements: announcing(ourAnnouncements)}, announced)
				tt.do(p)
				if got := sentFor(p.lan, 5*time.Millisecond); len(got) != tt.want {
					t.Errorf("sent %v, want %d frames", got, tt.want)
				}
				groups, group := map[string]bool{}, netip.MustParseAddr("ff02::1:ff00:100")
				for _, l := range p.lan.snapshot() {
					groups[groupMembership{l.Index, group}.String()] = true
				}
				if diff := cmp.Diff(groups, joined(p.Responder)); diff != "" {
					t.Errorf("groups (-want +got):\n%s", diff)
				}
				for kind := range p.counters.repairs {
					if n := p.counters.repairs[kind].Load(); (n == 1) != (kind == tt.repaired) {
						t.Errorf("%d repairs of kind %d", n, kind)
					}
				}
			})
		})
	}
}

// A removed address is no longer announced, even in the middle of its burst.
func TestRemovedWhileAnnounced(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		p.settle(Desired{Announcements: announcing(ourAnnouncements)}, 60*time.Millisecond)
		p.Set(Desired{Announcements: announcing(ourAnnouncements[:1])})
		for _, line := range sentFor(p.lan, 5*time.Minute) {
			if strings.HasSuffix(line, "NA") {
				t.Errorf("sent %s", line)
			}
		}
	})
}

// Announcing is true until each address was announced once.
func TestAnnouncing(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		p.lan.stuck.Store(true)
		if p.Announcing() {
			t.Error("announcing without an address")
		}
		p.settle(Desired{Announcements: announcing(ourAnnouncements)}, time.Second)
		if !p.Announcing() {
			t.Error("not announcing before the first announcement")
		}
		p.lan.stuck.Store(false)
		sentFor(p.lan, 5*time.Millisecond)
		if p.Announcing() {
			t.Error("announcing after the first announcement")
		}
	})
}

// A thousand simultaneous addresses are all announced soon, but not in one instant.
//
// Trap: a full queue of announcements blocks the deciding goroutine (MetalLB).
func TestAnnouncementsArePaced(t *testing.T) {
	const addresses = 1000
	runPlay(t, nil, func(p *play) {
		p.Set(Desired{Announcements: announcing(manyAddresses(addresses))})
		// Kicks must not accelerate it.
		for range 10 {
			synctest.Wait()
			p.Kick()
		}
		perInstant := make(map[string]int)
		// Not one is repeated before each has been announced once.
		got := sentFor(p.lan, addresses/paceFrames*paceInterval-paceInterval/2)
		for _, line := range got {
			perInstant[strings.Fields(line)[0]]++
		}
		if len(got) != addresses {
			t.Errorf("%d addresses announced, want %d", len(got), addresses)
		}
		for at, n := range perInstant {
			if n > paceFrames {
				t.Errorf("%d frames at %s", n, at)
			}
		}
	})
}

// A link that cannot be opened is retried, and neither stops nor delays others.
//
// Trap: one failing interface ends the scan of all others (MetalLB #2990).
func TestOpenFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := newFakeLAN(eth0, eth1)
		lan.fail = map[string]error{"eth0": errors.New("operation not permitted")}
		r := lan.responder()
		defer run(t, r)()
		r.Set(Desired{Announcements: announcing(ourAnnouncements)})
		if got := sentFor(lan, 5*time.Millisecond); len(got) != 2 {
			t.Errorf("on the link beside it %v are sent", got)
		}
		sentFor(lan, 5*time.Second)
		if s := r.State(); !slices.Equal(s.Links, []string{"eth1"}) || len(s.Addresses) != 2 ||
			!slices.Equal(s.Addresses[0].Links, s.Links) {
			t.Errorf("state is %+v", s)
		}
		lan.mu.Lock()
		lan.fail = nil
		lan.mu.Unlock()
		if got := sentFor(lan, 2*time.Second); len(got) == 0 {
			t.Error("nothing announced once the link can be opened")
		}
		if n := r.counters.repairs[repairSocket].Load(); n != 0 {
			t.Errorf("%d repairs of what was never there", n)
		}
	})
}

// A failing socket is reopened at once, and counted. A socket that fails as soon as it is
// open is retried periodically, not in a tight loop.
//
// Trap: an address vanishes until the pod is restarted (kube-vip #475, Cilium #26586).
func TestSocketRepairs(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		p.settle(Desired{Announcements: announcing(ourAnnouncements)}, announced)
		repaired := func() uint64 { return p.counters.repairs[repairSocket].Load() }
		p.lan.conn("eth0", p.protocols[0]).Close()
		synctest.Wait()
		if repaired() != 1 || p.lan.conn("eth0", p.protocols[0]) == nil {
			t.Errorf("%d repairs at once", repaired())
		}
		p.lan.mu.Lock()
		p.lan.dead = true
		p.lan.mu.Unlock()
		p.lan.conn("eth0", p.protocols[0]).Close()
		sentFor(p.lan, 10*time.Second)
		if n := repaired(); n < 5 || n > 20 {
			t.Errorf("%d repairs in 10 s", n)
		}
	})
}

// Addresses that come one after the other are repeated together, and leave nothing but their next announcement behind.
func TestRepeatedTogether(t *testing.T) {
	s := newSchedule(Timers{}.withDefaults(), &rateLimit{}, randomBetween)
	const every, addresses = 50 * time.Millisecond, 1200
	start := time.Unix(0, 0)
	at, wakes, sent := start, 0, 0
	for i := range uint32(addresses) {
		come := start.Add(time.Duration(i) * every)
		for wait := s.untilNext(at); at.Add(wait).Before(come); wait = s.untilNext(at) {
			at = at.Add(wait)
			wakes++
			for it := s.nextDue(at); it != nil; it = s.nextDue(at) {
				sent++
				s.spend(1, it.lane, at)
				s.complete(it, at)
			}
		}
		at = come
		s.setJob(address4(10<<24+i), job{phase: owned, status: newStatus(owned)}, at)
	}
	if maxChecks := int(moveTime / every); len(s.items) > addresses+maxChecks+1 {
		t.Errorf("%d items of %d addresses", len(s.items), addresses)
	}
	if wakes > sent/2 {
		t.Errorf("%d wake-ups for %d frames", wakes, sent)
	}
}

// A removed address is not announced even before Run has processed the Set.
func TestRemovedBeforeSync(t *testing.T) {
	lan := newFakeLAN(eth0)
	r := lan.responder()
	k := newPortKeeper(r)
	defer k.close()
	r.Set(Desired{Announcements: announcing(ourAnnouncements)})
	k.sync()
	r.Set(Desired{})
	k.sendDue()
	if n := len(lan.out); n != 0 {
		t.Errorf("%d frames sent", n)
	}
}

// TestBondFailsOver: when another member of a bond becomes active, which has the bond's MAC, one address is announced,
// so that the switch sends to its port.
func TestBondFailsOver(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		bond := eth0
		bond.Member = 7
		p.links(bond)
		p.settle(Desired{Announcements: announcing(manyAddresses(100))}, 100*time.Second)
		bond.Member = 0 // for a moment there is none
		p.links(bond)
		bond.Member = 8
		p.links(bond)
		if n := len(p.lan.out); n != 1 {
			t.Errorf("%d frames after the failover", n)
		}
	})
}
