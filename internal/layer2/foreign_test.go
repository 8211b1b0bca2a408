package layer2

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
)

// host is the MAC and the IPv4 address of the n-th foreign host.
func host(n byte) (lb.MAC, netip.Addr) {
	return lb.MAC{2, 0x54, 0, 0, 0, n}, netip.AddrFrom4([4]byte{192, 0, 2, n})
}

func askedBy(n byte, target netip.Addr) []byte {
	mac, addr := host(n)
	return arpRequest(target, func(p *arp.Packet, f *ethernet.Frame) {
		p.SenderIP, p.SenderHardwareAddr, f.Source = addr, mac.HardwareAddr(), mac.HardwareAddr()
	})
}

// TestForeign: machines that ask are known for ten minutes, but not speakers, nor machines
// without an address yet. Of many machines the latest are known.
func TestForeign(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		p.Set(Desired{Announcements: announcing(ourAnnouncements), Speakers: map[lb.MAC]bool{ourMAC: true, otherMAC: true}})
		expect := func(when string, n int, want ...lb.Question) {
			t.Helper()
			same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
			if diff := cmp.Diff(want, p.Foreign("eth0", n), same); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		p.put(arpProbeBy(askerMAC))
		p.put(arpRequest(v4, func(a *arp.Packet, f *ethernet.Frame) {
			a.SenderHardwareAddr, f.Source = otherMAC.HardwareAddr(), otherMAC.HardwareAddr()
		}))
		expect("no other machine", 8)
		p.put(arpRequest(v4, nil))
		p.put(ns(v6, nil))
		asker := []lb.Question{{Link: "eth0", MAC: askerMAC, Address: asker4}, {Link: "eth0", MAC: askerMAC, Address: asker6}}
		expect("who asked", 8, asker...)
		expect("one of them", 1, asker[0])
		mac, addr := host(9)
		p.put(askedBy(9, v4))
		expect("the machines first", 8, lb.Question{Link: "eth0", MAC: askerMAC, Address: asker4}, lb.Question{
			Link: "eth0", MAC: mac, Address: addr,
		},
			lb.Question{Link: "eth0", MAC: askerMAC, Address: asker6})
		for n := range byte(20) {
			time.Sleep(2 * machineInterval)
			p.put(askedBy(n+20, v4))
		}
		got := p.Foreign("eth0", 20)
		var want []lb.Question
		for n := byte(39); n > 31; n-- {
			mac, addr := host(n)
			want = append(want, lb.Question{Link: "eth0", MAC: mac, Address: addr})
		}
		want = slices.Insert(want, 1, asker[1])
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("the latest (-want +got):\n%s", diff)
		}
		time.Sleep(machineLifetime)
		expect("later", 8)
	})
}

// TestForgedAskers: machines that ask without end, and never answer, do not displace a machine that answered. That
// machine comes before them.
func TestForgedAskers(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		p.Set(Desired{Announcements: announcing(ourAnnouncements)})
		p.put(arpRequest(v4, nil))
		p.recordAnswer(&tap{socket: socket{link: eth0, proto: p.protocols[0]}}, message{mac: askerMAC, claimed: asker4})
		for range 3 {
			for n := range byte(200) {
				p.put(askedBy(n+1, v4))
				time.Sleep(machineInterval / 10)
			}
		}
		got := p.Foreign("eth0", 20)
		if len(got) != maxMachines || got[0] != (lb.Question{Link: "eth0", MAC: askerMAC, Address: asker4}) {
			t.Errorf("%d machines: %v", len(got), got)
		}
	})
}

// TestGatewayIsRemembered: the kernel forgets the MAC of a router that it cannot reach,
// and just such a router is to be asked.
func TestGatewayIsRemembered(t *testing.T) {
	lan := newFakeLAN(eth0)
	r := lan.responder()
	gateway := lb.Neighbour{Address: asker4, MAC: askerMAC}
	c := r.foreignOn("eth0")
	for _, tt := range []struct {
		name string
		read []lb.Neighbour
		want int
	}{
		{"not resolved yet", []lb.Neighbour{{Address: asker4}}, 0},
		{"resolved", []lb.Neighbour{gateway}, 1},
		{"forgotten", []lb.Neighbour{{Address: asker4}}, 1},
		{"another one", []lb.Neighbour{{Address: foreign4}}, 0},
		{"none", nil, 0},
	} {
		c.setGateways(tt.read)
		got := r.Foreign("eth0", 8)
		if len(got) != tt.want || len(got) == 1 && got[0] != (lb.Question{Link: "eth0", MAC: askerMAC, Address: asker4}) {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// TestDefenceAgainstBursts: another machine claims an address in bursts of five, once a second. A gateway and a machine
// that asked send to us again within 100 ms of each burst. All others hear a defence every ten seconds (RFC 5227
// section 2.4), and one after the last burst. The other link hears nothing.
//
// Trap: the defence leaves after the first claim of a burst, the other four win, and what comes within ten seconds is
// dropped.
func TestDefenceAgainstBursts(t *testing.T) {
	const seconds = 35
	third := lb.MAC{2, 0x53, 0, 0, 0, 4}
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
			r.config.Gateways = func(int) []lb.Neighbour {
				return []lb.Neighbour{{Address: netip.MustParseAddr(tt.gateway), MAC: otherMAC}}
			}
			defer run(t, r)()
			r.Set(Desired{Announcements: announcing([]lb.Announcement{{Address: tt.addr}})})
			synctest.Wait()
			w := lan.conn("eth0", r.protocols[family])
			w.in <- tt.question
			sentFor(lan, 2*time.Minute)
			frames := make(map[string]int)
			// deceived is since when a machine sends to the other claimant, and longest how long it did so at most.
			deceived, longest := make(map[string]time.Time), make(map[string]time.Duration)
			collect := func(d time.Duration) {
				for f := range lan.frames(d) {
					if !announcedBy(f).IsValid() {
						continue // a duplicate check
					}
					to := strings.Fields(describe(f))[0]
					frames[to]++
					for who, since := range deceived {
						if to == who || to == tt.all {
							longest[who] = max(longest[who], time.Since(since))
							delete(deceived, who)
						}
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
			if all, one := frames[tt.all]-refreshes, frames[gateway]; all < 4 || all > 5 || one < seconds || one > seconds+1 ||
				frames[asker] != one {
				t.Errorf("%v: sent %v", tt.addr, frames)
			}
			if len(frames) > 4 || refreshes > 2 {
				t.Errorf("%v: sent on a link without a conflict: %v", tt.addr, frames)
			}
		})
	}
}

// TestDefenceOfMany: endless claims of a thousand addresses leave half of the rate to repetitions.
func TestDefenceOfMany(t *testing.T) {
	timers := Timers{}.withDefaults()
	at := time.Now()
	s := newSchedule(timers, &rateLimit{}, randomBetween)
	set := manyAddresses(1000)
	for _, a := range set {
		s.setJob(a.Address, job{owned, nil}, at)
	}
	sent := make(map[purpose]int)
	for range 60 * 1000 {
		for it := s.nextDue(at); it != nil; it = s.nextDue(at) {
			s.spend(1, it.lane, at)
			sent[it.purpose]++
			s.complete(it, at)
		}
		at = at.Add(time.Millisecond)
		s.defend(set[sent[directDefence]%len(set)].Address, at)
		for i := range 4 {
			s.defend(set[(sent[steps]+i*250)%len(set)].Address, at)
		}
	}
	if all := sent[steps] + sent[defence] + sent[directDefence]; all > 1000+61*timers.Rate {
		t.Errorf("%d frames in a minute", all)
	}
	// Each is announced once, repeated six times, and claimed throughout.
	if sent[steps] < 6000 || sent[directDefence] < 10*timers.Rate {
		t.Errorf("sent %v", sent)
	}
}

// questions returns when this node sent duplicate checks within a time, and drops all other frames.
func questions(lan *fakeLAN, d time.Duration) (at []time.Duration) {
	start := time.Now()
	for f := range lan.frames(d) {
		what := strings.Fields(describe(f))
		if slices.Contains(what, "NS") || what[1] == "ARP" && what[2] == "1" && what[3] != what[6] {
			at = append(at, time.Since(start))
		}
	}
	return at
}

// twoOwners are, for each family, our announcement, a claim by the other speaker to all, and its answer to us.
func twoOwners(t *testing.T) []struct {
	ours           lb.Announcement
	claim          []byte
	answer, ofOurs []byte
} {
	answer4 := func(mac lb.MAC) []byte {
		return arpRequest(netip.IPv4Unspecified(), func(p *arp.Packet, f *ethernet.Frame) {
			p.Operation, p.SenderIP, p.SenderHardwareAddr = arp.OperationReply, v4, mac.HardwareAddr()
			f.Source, f.Destination = askerMAC.HardwareAddr(), ourMAC.HardwareAddr()
		})
	}
	return []struct {
		ours           lb.Announcement
		claim          []byte
		answer, ofOurs []byte
	}{
		{ourAnnouncements[0], claim4(askerMAC), answer4(askerMAC), answer4(ourMAC)},
		{ourAnnouncements[1], claim6(askerMAC), solicitedNA(t, ourMAC, askerMAC, askerMAC, true),
			solicitedNA(t, ourMAC, askerMAC, ourMAC, true)},
	}
}

// TestSecondOwner: a new owner checks once for a duplicate, when the move has settled, and again after a speaker's
// claim. Two answers moveTime apart are a conflict, with the MAC of any other machine, within fifteen seconds of the
// claim, and as long as answers come. The answer of a stand-in has our own MAC, and is no conflict.
func TestSecondOwner(t *testing.T) {
	const conflict = "announced against 02:53:00:00:00:02"
	for _, tt := range twoOwners(t) {
		runPlay(t, nil, func(p *play) {
			p.Set(Desired{Announcements: announcing([]lb.Announcement{tt.ours}), Speakers: speakers})
			p.put(tt.claim)
			if at := questions(p.lan, moveTime-time.Millisecond); len(at) > 0 {
				t.Errorf("%s: asked before the move settled, after %v", tt.ours.Address, at)
			}
			p.expectIs("a move", "announced")
			if at := questions(p.lan, time.Minute); len(at) != 1 {
				t.Errorf("%s: asked after %v", tt.ours.Address, at)
			}
			p.put(tt.ofOurs)
			p.expectIs("a stand-in", "announced")
			p.put(tt.claim)
			p.expectIs("a speaker claims it", "announced")
			if at := questions(p.lan, 9*time.Second); len(at) != 1 {
				t.Errorf("%s: after a claim asked after %v", tt.ours.Address, at)
			}
			p.put(tt.answer)
			p.expectIs("it answers in a move", "announced")
			if at := questions(p.lan, conflictAge); len(at) != 1 {
				t.Errorf("%s: after an answer asked after %v", tt.ours.Address, at)
			}
			p.put(tt.answer)
			p.expectIs("it answers in another move", "announced")
			if at := questions(p.lan, moveTime+time.Second); len(at) != 1 {
				t.Errorf("%s: after another answer asked after %v", tt.ours.Address, at)
			}
			p.put(tt.answer)
			p.expectIs("it still answers after a move", conflict)
			for range 10 {
				if at := questions(p.lan, conflictAge/2); len(at) == 0 {
					t.Fatalf("%s: not asked while another machine has it", tt.ours.Address)
				}
				p.put(tt.answer)
			}
			p.expectIs("it still answers", conflict)
			questions(p.lan, conflictAge+time.Second)
			p.expectIs("it does not answer any more", "announced")
			if at := questions(p.lan, 10*time.Minute); len(at) > 1 {
				t.Errorf("%s: asked without a conflict after %v", tt.ours.Address, at)
			}
		})
	}
}

// TestManyNewOwnersAsk: of a thousand new addresses at most fifty a second are checked for duplicates, and some ten at
// once.
func TestManyNewOwnersAsk(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		p.Set(Desired{Announcements: announcing(manyAddresses(1000)), Speakers: speakers})
		at := questions(p.lan, time.Minute)
		if len(at) != 1000 {
			t.Errorf("asked %d times", len(at))
		}
		for i := range at[62:] {
			if at[i+62]-at[i] < time.Second {
				t.Fatalf("63 questions within %v", at[i+62]-at[i])
			}
		}
		slices.Sort(at)
		if moments := len(slices.Compact(at)); moments > 120 {
			t.Errorf("asked at %d moments", moments)
		}
	})
}

// TestLeftoverOwner: the kernel of another speaker's node has an address of ours, for example because keepalived left
// it there. That kernel never announces the address, and answers for it.
func TestLeftoverOwner(t *testing.T) {
	onLAN(t, func(t *testing.T, l *lan) {
		l.other.AddAddress("eth0", v4.String()+"/32", v6.String()+"/128")
		l.first.Set(l.here())
		nstest.Until(t, within, "a conflict of both", func() bool {
			found := 0
			for _, a := range l.first.State().Addresses {
				if a.Answered && len(a.Conflicts) == 1 && a.Conflicts[0].MAC == lb.MACFrom(l.other.MAC("eth0")) {
					found++
				}
			}
			return found == 2
		})
	})
}

// TestNetworks: the subnets and default gateways of links that announce are each returned once, without link-local
// ones.
func TestNetworks(t *testing.T) {
	link := func(index int, prefixes ...string) lb.Interface {
		l := lb.Interface{Index: index, Name: fmt.Sprint("eth", index), Up: true, MAC: lb.MAC{2, 0, 0, 0, 0, byte(index)}}
		for _, p := range prefixes {
			l.Prefixes = append(l.Prefixes, netip.MustParsePrefix(p))
		}
		return l
	}
	pods := link(3, "10.244.1.1/24")
	pods.NoClients = true
	links := []lb.Interface{
		link(1, "192.0.2.11/24", "192.0.2.12/24", "192.0.2.99/32", "2001:db8::11/64", "fe80::1/64"),
		link(2, "198.51.100.1/31"),
		pods,
	}
	gateways := map[int][]lb.Neighbour{
		1: {{Address: netip.MustParseAddr("192.0.2.1")}, {Address: netip.MustParseAddr("fe80::99")}},
		2: {{Address: netip.MustParseAddr("192.0.2.1")}, {Address: netip.MustParseAddr("2001:db8::1")}},
		3: {{Address: netip.MustParseAddr("10.244.1.254")}},
	}
	synctest.Test(t, func(t *testing.T) {
		r := newFakeLAN().responder()
		r.config.Links = func() []lb.Interface { return links }
		r.config.Gateways = func(index int) []lb.Neighbour { return gateways[index] }
		if _, early := r.Networks(); early != nil {
			t.Errorf("gateways before they were read: %v", early)
		}

		defer run(t, r)()
		synctest.Wait()
		subnets, routers := r.Networks()
		const want = "[192.0.2.0/24 2001:db8::/64 198.51.100.0/31] [192.0.2.1 2001:db8::1]"
		if got := fmt.Sprint(subnets, routers); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}
