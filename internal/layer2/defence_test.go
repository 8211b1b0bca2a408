package layer2

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestDefenceAgainstBursts: another machine claims an address in bursts of five, once a second. A gateway and a machine that asked
// send to us again within 100 ms of each burst. All others hear a defence every ten seconds (RFC 5227 section 2.4), and one after the
// last burst. The other link hears nothing.
//
// Trap: the defence leaves after the first claim of a burst, the other four win, and what comes within ten seconds is dropped.
func TestDefenceAgainstBursts(t *testing.T) {
	const seconds = 35
	third, eth1 := lb.MAC{2, 0x53, 0, 0, 0, 4}, lb.Interface{Index: 3, Name: "eth1", MAC: lb.MAC{2, 0x53, 0, 0, 0, 5}, Up: true}
	for family, tt := range []struct {
		addr     netip.Addr
		gateway  string
		question []byte
		claim    []byte
		all      string
	}{
		{v4, "192.0.2.254", arpRequest(v4, nil), claim4(third), "us>all"},
		{v6, "fe80::254", ns(v6, nil), claim6(third), "us>33:33:00:00:00:01"},
	} {
		synctest.Test(t, func(t *testing.T) {
			lan := newFakeLAN(eth0, eth1)
			r := lan.responder()
			r.gateways = func(int) []lb.Neighbour {
				return []lb.Neighbour{{Address: netip.MustParseAddr(tt.gateway), MAC: otherMAC}}
			}
			defer run(t, r)()
			r.Set(Desired{Announcements: []lb.Announcement{{Address: tt.addr}}})
			synctest.Wait()
			w := lan.wire("eth0", r.protocols[family])
			w.in <- tt.question
			sentFor(lan, 2*time.Minute)
			frames := make(map[string]int)
			// deceived is since when a machine sends to the other one, longest for how long it did at most.
			deceived, longest := make(map[string]time.Time), make(map[string]time.Duration)
			collect := func(d time.Duration) {
				for end := time.After(d); ; {
					select {
					case f := <-lan.out:
						if !announcedBy(f).IsValid() {
							continue // a question who else has it
						}
						to := strings.Fields(describe(f))[0]
						frames[to]++
						for who, since := range deceived {
							if to == who || to == tt.all {
								longest[who] = max(longest[who], time.Since(since))
								delete(deceived, who)
							}
						}
					case <-end:
						return
					}
				}
			}
			gateway, asker := "us>"+otherMAC.String(), "us>asker"
			for range seconds {
				for range 5 {
					w.in <- tt.claim
					for _, who := range []string{gateway, asker, tt.all} {
						deceived[who] = time.Now()
					}
					collect(time.Millisecond)
				}
				collect(995 * time.Millisecond)
			}
			collect(10 * time.Second)
			if longest[gateway] >= 100*time.Millisecond || longest[asker] >= 100*time.Millisecond || len(deceived) > 0 {
				t.Errorf("%v: deceived for %v, and at the end %v", tt.addr, longest, deceived)
			}
			// The refresh goes out on both links.
			refreshes := frames[strings.Replace(tt.all, "us", eth1.MAC.String(), 1)]
			if all, one := frames[tt.all]-refreshes, frames[gateway]; all < 4 || all > 5 || one < seconds || one > seconds+1 || frames[asker] != one {
				t.Errorf("%v: sent %v", tt.addr, frames)
			}
			if len(frames) > 4 || refreshes > 2 {
				t.Errorf("%v: sent on a link without a conflict: %v", tt.addr, frames)
			}
		})
	}
}

// TestDefenceOfMany: claims of a thousand addresses without end leave half of the pace to repetitions.
func TestDefenceOfMany(t *testing.T) {
	timers := Timers{}.withDefaults()
	now := time.Now()
	s := newSchedule(timers, &pace{}, between)
	set := manyAddresses(1000)
	for _, a := range set {
		s.put(a.Address, job{ours, nil}, now)
	}
	sent := make(map[use]int)
	for range 60 * 1000 {
		for it := s.due(now); it != nil; it = s.due(now) {
			s.spend(1, it.lane, now)
			sent[it.use]++
			s.done(it, now)
		}
		now = now.Add(time.Millisecond)
		s.defend(set[sent[nearDefence]%len(set)].Address, now)
		for i := range 4 {
			s.defend(set[(sent[steps]+i*250)%len(set)].Address, now)
		}
	}
	if all := sent[steps] + sent[defence] + sent[nearDefence]; all > 1000+61*timers.Rate {
		t.Errorf("%d frames in a minute", all)
	}
	// Each is announced once, repeated six times, and claimed throughout.
	if sent[steps] < 6000 || sent[nearDefence] < 10*timers.Rate {
		t.Errorf("sent %v", sent)
	}
}
