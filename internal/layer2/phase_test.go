package layer2

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// speakers are this node and the asker.
var speakers = map[lb.MAC]bool{ourMAC: true, askerMAC: true}

// bothFamilies are announcements of v4 and of v6, changed as the test says.
func bothFamilies(change func(*lb.Announcement)) []lb.Announcement {
	out := []lb.Announcement{{Address: v4}, {Address: v6}}
	for i := range out {
		change(&out[i])
	}
	return out
}

func probed(a *lb.Announcement) { a.Probe = true }

// play is a Responder on a fake LAN, with the actions of a test on one of its links.
type play struct {
	*Responder
	t       *testing.T
	on      lb.Interface
	lan     *fakeLAN
	changes atomic.Int64
}

// runPlay runs a play on eth0, and on more links, in a bubble.
func runPlay(t *testing.T, lease Lease, act func(p *play), more ...lb.Interface) {
	synctest.Test(t, func(t *testing.T) {
		p := &play{t: t, on: eth0, lan: newFakeLAN(append(more, eth0)...)}
		c := Config{Links: p.lan.snapshot, Lease: lease, Changed: func() { p.changes.Add(1) }}
		p.Responder = quietResponder(c, p.lan.system())
		defer run(t, p.Responder)()
		act(p)
	})
}

// settle sets a plan, and waits. It drops the frames that are sent meanwhile.
func (p *play) settle(d Desired, during time.Duration) {
	p.Set(d)
	sentFor(p.lan, during)
}

// links replaces the links.
func (p *play) links(links ...lb.Interface) {
	p.lan.set(links...)
	p.Kick()
	synctest.Wait()
}

// put writes a frame to our link, and returns our answer to the asker, "" for none.
func (p *play) put(frame []byte) string {
	p.t.Helper()
	family := map[byte]int{0x86: 1, 0x88: echoIndex}[frame[offEtherType]]
	synctest.Wait()
	w := p.lan.conn(p.on.Name, p.protocols[family])
	if w == nil {
		return "" // the link is not in use
	}
	w.in <- frame
	synctest.Wait()
	for {
		select {
		case f := <-p.lan.out:
			// An answer goes to the asker or, with IPv6 and an asker without address, to all.
			if lb.MAC(f[offDestination:offSource]) == askerMAC {
				return describe(f)
			}
		default:
			return ""
		}
	}
}

// answers reports which of v4 and v6 are answered.
func (p *play) answers() string {
	p.t.Helper()
	var got []string
	if p.put(arpRequest(v4, nil)) != "" {
		got = append(got, "v4")
	}
	if p.put(ns(v6, nil)) != "" {
		got = append(got, "v6")
	}
	return strings.Join(got, " ")
}

func (p *play) expect(when, answers string) {
	p.t.Helper()
	if got := p.answers(); got != answers {
		p.t.Errorf("%s: %q is answered, want %q", when, got, answers)
	}
}

// phases returns the phase of each address with its conflict.
func (p *play) phases() string {
	var words []string
	for _, a := range p.State().Addresses {
		word := a.Phase
		for _, c := range a.Conflicts {
			word += " against " + c.MAC.String()
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

func (p *play) expectIs(when, want string) {
	p.t.Helper()
	synctest.Wait()
	if got := p.phases(); got != want {
		p.t.Errorf("%s: %q, want %q", when, got, want)
	}
}

// arpProbeBy is an ARP probe for v4 and dadBy duplicate address detection for v6, both by a station.
func arpProbeBy(mac lb.MAC) []byte {
	return arpRequest(v4, func(p *arp.Packet, f *ethernet.Frame) {
		p.SenderIP, p.SenderHardwareAddr, f.Source = netip.IPv4Unspecified(), mac.HardwareAddr(), mac.HardwareAddr()
	})
}

func dadBy(mac lb.MAC) []byte {
	return ns(v6, func(s *solicitation) {
		s.source, s.message.Options, s.eth.Source = netip.IPv6Unspecified(), nil, mac.HardwareAddr()
	})
}

// claim4 is a reply by a station that it has v4, claim6 an advertisement of v6.
func claim4(mac lb.MAC) []byte {
	return arpRequest(asker4, func(p *arp.Packet, f *ethernet.Frame) {
		p.Operation, p.SenderIP = arp.OperationReply, v4
		p.SenderHardwareAddr, f.Source = mac.HardwareAddr(), mac.HardwareAddr()
	})
}

func claim6(mac lb.MAC) []byte { return na(v6, mac, nil) }

// TestNewAddressIsProbed (RFC 5227 section 2.1.1, RFC 4862 section 5.4): three
// questions within 25 ms, no answer before, then the announcements.
func TestNewAddressIsProbed(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		p.Set(Desired{Announcements: announcing(bothFamilies(probed))})
		p.expect("while probing", "")
		p.expectIs("while probing", "probing, probing")
	})
	runPlay(t, nil, func(p *play) {
		p.Set(Desired{Announcements: announcing(bothFamilies(probed)[:1])})
		synctest.Wait()
		p.changes.Store(0)
		want := []string{"0s ARP 1", "8ms ARP 1", "16ms ARP 1", "25ms ARP 1"}
		if diff := cmp.Diff(want, sentFor(p.lan, 300*time.Millisecond)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if p.changes.Load() == 0 {
			t.Error("the announcement was not reported")
		}
		p.Set(Desired{Announcements: announcing(bothFamilies(probed)[:1])})
		p.expect("once announced it stays so", "v4")
	})
}

// TestAddressComesBack: an address that this node released and no node owned since is announced after one probe. It is
// left to a machine that answers the probe. After a minute, another owner or a conflict it counts as new.
func TestAddressComesBack(t *testing.T) {
	one, none := Desired{Announcements: announcing(bothFamilies(probed)[:1]),
		Owners: lb.MapOf(map[netip.Addr]string{v4: "w1"})}, Desired{}
	elsewhere := Desired{Owners: lb.MapOf(map[netip.Addr]string{v4: "w2"})}
	full := []string{"0s ARP 1", "8ms ARP 1", "16ms ARP 1", "25ms ARP 1"}
	for _, tt := range []struct {
		name     string
		away     Desired
		after    time.Duration
		conflict bool
		want     []string
	}{
		{"at once", none, time.Millisecond, false, []string{"0s ARP 1", "0s ARP 1"}},
		{"later", none, 59 * time.Second, false, []string{"0s ARP 1", "0s ARP 1"}},
		{"too late", none, time.Minute, false, full},
		{"from another node", elsewhere, 0, false, full},
		{"after a conflict", none, 0, true, full},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runPlay(t, nil, func(p *play) {
				p.settle(one, 5*time.Second)
				if tt.conflict {
					p.put(claim4(otherMAC))
				}
				p.Set(tt.away)
				p.settle(none, tt.after)
				p.expect("while it is away", "")
				p.Set(one)
				if diff := cmp.Diff(tt.want, sentFor(p.lan, 300*time.Millisecond)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				p.expect("when it is back", "v4")
			})
		})
	}
	runPlay(t, nil, func(p *play) {
		p.settle(one, 5*time.Second)
		p.Set(none)
		p.settle(one, 100*time.Millisecond)
		p.lan.conn("eth0", p.protocols[0]).in <- twoOwners(t)[0].answer
		p.expect("another machine answered", "")
		if got := sentFor(p.lan, 8*time.Second); len(got) > 0 {
			t.Errorf("sent where another machine has it: %v", got)
		}
		p.Set(none)
		p.Set(one)
		if diff := cmp.Diff(full, sentFor(p.lan, 300*time.Millisecond)); diff != "" {
			t.Errorf("after a conflict (-want +got):\n%s", diff)
		}
	})
}

func TestConflictWhileProbing(t *testing.T) {
	for _, tt := range []struct {
		name   string
		frames [familyCount][]byte
		want   string
	}{
		{"an answer", [familyCount][]byte{claim4(otherMAC), claim6(otherMAC)}, "probing against 02:53:00:00:00:03"},
		{"who probes at the same time", [familyCount][]byte{arpProbeBy(otherMAC), dadBy(otherMAC)},
			"probing against 02:53:00:00:00:03"},
		{"an answer of a speaker", [familyCount][]byte{claim4(askerMAC), claim6(askerMAC)}, "probing"},
		{"a probe of a speaker", [familyCount][]byte{arpProbeBy(askerMAC), dadBy(askerMAC)}, "probing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runPlay(t, nil, func(p *play) {
				p.Set(Desired{Announcements: announcing(bothFamilies(probed)), Speakers: speakers})
				synctest.Wait()
				p.changes.Store(0)
				for _, f := range tt.frames {
					p.put(f)
				}
				p.expectIs("after it", tt.want+", "+tt.want)
				time.Sleep(time.Second)
				if tt.want == "probing" {
					p.expect("a second later", "v4 v6")
					return
				}
				p.expect("a second later", "")
				if p.changes.Load() == 0 {
					t.Error("the conflict was not reported")
				}
				// The other machine has gone away.
				time.Sleep(10 * time.Second)
				p.expect("when it is free", "v4 v6")
				p.expectIs("when it is free", "announced, announced")
			})
		})
	}
}

// TestLateAnswer: a machine that answers probes within a second after the address became owned keeps it. Nothing else
// makes this node leave it: against a claim to all machines it defends the address, and checks for a duplicate. A later
// answer, or an answer where nothing was probed, does not count.
//
// Trap: one forged packet takes an address.
func TestLateAnswer(t *testing.T) {
	const during = 25 * time.Millisecond
	for i, tt := range twoOwners(t) {
		family := []string{"v4", "v6"}[i]
		claim, answer := tt.claim, tt.answer
		for _, tt := range []struct {
			name    string
			unasked bool
			after   time.Duration
			frames  [][]byte
			leaves  bool
			// asked is the number of duplicate checks within a second.
			asked int
		}{
			{"an answer in time", false, 990 * time.Millisecond, [][]byte{answer}, true, 0},
			{"an answer too late", false, 1010 * time.Millisecond, [][]byte{answer}, false, 0},
			{"an answer where nothing was probed", true, 500 * time.Millisecond, [][]byte{answer}, false, 0},
			{"a claim to all", false, 500 * time.Millisecond, [][]byte{claim}, false, 1},
			{"a claim to all, later", false, 1010 * time.Millisecond, [][]byte{claim}, false, 0},
			{"a claim to all, and an answer", false, 500 * time.Millisecond, [][]byte{claim, answer}, true, 1},
		} {
			t.Run(family+" "+tt.name, func(t *testing.T) {
				runPlay(t, nil, func(p *play) {
					p.settle(Desired{Announcements: announcing([]lb.Announcement{{Address: []netip.Addr{v4, v6}[i],
						Probe: !tt.unasked}})}, during+tt.after)
					asked := 0
					for _, f := range tt.frames {
						p.lan.conn("eth0", p.protocols[i]).in <- f
						asked += len(questions(p.lan, time.Millisecond))
					}
					asked += len(questions(p.lan, time.Second))
					if asked != tt.asked {
						t.Errorf("asked %d times", asked)
					}
					p.expectIs("afterwards", "announced against 02:53:00:00:00:02")
					if !tt.leaves {
						p.expect("afterwards", family)
						return
					}
					p.expect("afterwards", "")
					if a := p.State().Addresses[0]; a.Answered {
						t.Errorf("reported as answered: %+v", a)
					}
					if got := sentFor(p.lan, 8*time.Second); len(got) > 0 {
						t.Errorf("sent where another machine has it: %v", got)
					}
					sentFor(p.lan, 2*time.Second)
					p.expect("when it is free", family)
					p.expectIs("when it is free", "announced")
				})
			})
		}
	}
	runPlay(t, nil, func(p *play) {
		p.settle(Desired{Announcements: announcing(bothFamilies(probed)), Speakers: speakers}, during+time.Millisecond)
		for i, tt := range twoOwners(t) {
			p.lan.conn("eth0", p.protocols[i]).in <- tt.answer
		}
		p.expect("an answer of a speaker", "v4 v6")
	})
}

// TestConflictOnOneLink: an address that a machine of one link has is announced on the other link meanwhile, even while
// it is handed over. When it is free, it is announced on both.
func TestConflictOnOneLink(t *testing.T) {
	expect := func(p *play, when, on0, on1 string) {
		t.Helper()
		for l, want := range map[string]string{"eth0": on0, "eth1": on1} {
			p.on = map[string]lb.Interface{"eth0": eth0, "eth1": eth1}[l]
			p.expect(when+" on "+l, want)
		}
		p.on = eth0
	}
	claimed := func(p *play, a []lb.Announcement) {
		p.Set(Desired{Announcements: announcing(a), Speakers: speakers})
		p.put(claim4(otherMAC))
		p.put(claim6(otherMAC))
		expect(p, "while probing", "", "")
		for range 2 {
			var frames []string
			for f := range p.lan.frames(2 * time.Second) {
				frames = append(frames, lb.MAC(f[offSource:offEtherType]).String())
			}
			if slices.Contains(frames, eth0.MAC.String()) || !slices.Contains(frames, eth1.MAC.String()) {
				t.Errorf("sent by %v", frames)
			}
			expect(p, "in conflict", "", "v4 v6")
			p.put(claim4(otherMAC))
			p.put(claim6(otherMAC))
		}
	}
	runPlay(t, nil, func(p *play) {
		claimed(p, bothFamilies(probed))
		p.Set(Desired{Announcements: announcing(ourAnnouncements), Speakers: speakers})
		expect(p, "planned again", "", "v4 v6")
		sentFor(p.lan, 12*time.Second)
		expect(p, "when it is free", "v4 v6", "v4 v6")
	}, eth1)
	runPlay(t, nil, func(p *play) {
		claimed(p, bothFamilies(probed))
		p.Set(Desired{Yield: lb.SetOf(v4, v6), Speakers: speakers})
		expect(p, "handed over", "", "v4 v6")
		p.Set(Desired{Announcements: announcing(ourAnnouncements), Speakers: speakers})
		expect(p, "back", "", "v4 v6")
	}, eth1)
}

// TestDefence: a foreign claim of an announced address is reported, answered by one
// announcement each DEFEND_INTERVAL (RFC 5227 section 2.4), and later forgotten.
func TestDefence(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		p.settle(Desired{Announcements: announcing(ourAnnouncements[:1]), Speakers: speakers}, 33*time.Second)
		for _, mac := range []lb.MAC{askerMAC, ourMAC} {
			p.put(claim4(mac))
		}
		p.expectIs("claims of speakers", "announced")
		p.changes.Store(0)
		p.put(claim4(otherMAC))
		p.expectIs("a foreign claim", "announced against 02:53:00:00:00:03")
		if p.changes.Load() != 1 {
			t.Errorf("one conflict reported %d times", p.changes.Load())
		}
		// put has already read the first defence from the wire.
		var defences int
		for range 19 {
			time.Sleep(time.Second)
			p.lan.conn("eth0", p.protocols[0]).in <- claim4(otherMAC)
			synctest.Wait()
			for len(p.lan.out) > 0 {
				if strings.Contains(describe(<-p.lan.out), "us>all ARP 2") {
					defences++
				}
			}
		}
		if defences != 1 {
			t.Errorf("defended %d times within 19 s after the first", defences)
		}
		p.expect("meanwhile", "v4")
		time.Sleep(62 * time.Second)
		p.expectIs("when it is long gone", "announced")
		if p.changes.Load() != 2 || p.counters.conflicts[0].Load() != 20 || p.counters.repairs[repairConflict].Load() != 3 {
			t.Errorf("reported %d times, %d claims counted, %d defences", p.changes.Load(), p.counters.conflicts[0].Load(),
				p.counters.repairs[repairConflict].Load())
		}
	})
}

// TestManyClaim: two machines that take turns are one conflict. It names the first one
// as long as that is heard. Only then the other machine is reported.
func TestManyClaim(t *testing.T) {
	third := lb.MAC{2, 0x53, 0, 0, 0, 4}
	for name, announcements := range map[string][]lb.Announcement{
		"announced": ourAnnouncements[:1], "probed": bothFamilies(probed)[:1],
	} {
		runPlay(t, nil, func(p *play) {
			p.Set(Desired{Announcements: announcing(announcements), Speakers: speakers})
			synctest.Wait()
			p.changes.Store(0)
			claim := func(times int, named lb.MAC, reports int64, macs ...lb.MAC) {
				t.Helper()
				for range times {
					for _, mac := range macs {
						p.put(claim4(mac))
					}
					time.Sleep(100 * time.Millisecond)
				}
				if c := p.State().Addresses[0].Conflicts; len(c) != 1 || c[0].MAC != named || p.changes.Load() != reports {
					t.Errorf("%s: %+v, reported %d times, want %s and %d", name, c, p.changes.Load(), named, reports)
				}
			}
			claim(1000, otherMAC, 1, otherMAC, third)
			claim(610, third, 2, third)
		})
	}
}

// sentBy changes the station that sends a frame.
func sentBy(mac lb.MAC, frame []byte) []byte {
	copy(frame[offSource:], mac[:])
	return frame
}

// TestHandover: an address that moves to another node is answered until that node is
// heard, or until lingerTime; a removed address is not answered.
//
// Trap: the new owner does not know yet that it is the owner, and meanwhile no node answers.
func TestHandover(t *testing.T) {
	gone := Desired{Yield: lb.SetOf(v4, v6), Speakers: speakers}
	ours := Desired{Announcements: announcing(ourAnnouncements), Speakers: speakers}
	wait := func(d time.Duration) func(p *play) { return func(p *play) { sentFor(p.lan, d) } }
	for _, tt := range []struct {
		name string
		do   func(p *play)
		want string
	}{
		{"no owner is heard yet", wait(lingerTime - time.Millisecond), "v4 v6"},
		{"no owner is heard in time", wait(lingerTime), ""},
		{"the other speaker announces late", func(p *play) { wait(50 * time.Second)(p); p.put(claim4(askerMAC)) }, "v6"},
		{"the other speaker announces", func(p *play) { p.put(claim4(askerMAC)); p.put(claim6(askerMAC)) }, ""},
		{"one family is announced", func(p *play) { p.put(claim6(askerMAC)) }, "v4"},
		{"a machine that is not ours claims", func(p *play) {
			wait(4 * time.Second)(p)
			p.put(claim4(otherMAC))
			p.put(claim6(otherMAC))
		}, "v4 v6"},
		{"a machine claims for this node's MAC", func(p *play) {
			p.put(sentBy(otherMAC, claim4(ourMAC)))
			p.put(sentBy(otherMAC, claim6(ourMAC)))
		}, "v4 v6"},
		{"the other speaker says that it has one", func(p *play) { p.EndHandovers([]netip.Addr{v4, foreign4}) }, "v6"},
		{"the other speaker says that it has both", func(p *play) { p.EndHandovers([]netip.Addr{v4, v6}) }, ""},
		{"set again", func(p *play) { p.Set(gone); p.Kick() }, "v4 v6"},
		{"comes back", func(p *play) { p.put(claim4(askerMAC)); p.Set(ours) }, "v4 v6"},
		{"is withdrawn", func(p *play) {
			p.Set(Desired{})
			p.Set(ours)
			p.Set(Desired{Announcements: announcing(ourAnnouncements[:1])})
		}, "v4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runPlay(t, nil, func(p *play) {
				p.settle(ours, 3*time.Second)
				p.Set(gone)
				tt.do(p)
				p.expect(tt.name, tt.want)
			})
		})
	}
}

// TestHandoverIsQuiet: a handover sends nothing to all neighbours, and ends. A former owner does not answer an older
// former owner that asks for the new owner.
func TestHandoverIsQuiet(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		p.settle(Desired{Announcements: announcing(ourAnnouncements[:1]), Speakers: speakers}, 3*time.Second)
		p.Set(Desired{Yield: lb.SetOf(v4), Speakers: speakers})
		if got := p.HandingOver(); !slices.Equal(got, []netip.Addr{v4}) {
			t.Errorf("handed over: %v", got)
		}
		if got := sentFor(p.lan, 2*lingerTime); got != nil {
			t.Errorf("meanwhile all neighbours get %v", got)
		}
		if got := p.HandingOver(); got != nil {
			t.Errorf("handed over in the end: %v", got)
		}
	})
	runPlay(t, nil, func(p *play) {
		p.settle(Desired{Announcements: announcing(ourAnnouncements), Speakers: speakers}, 3*time.Second)
		p.Set(Desired{Yield: lb.SetOf(v4, v6), Speakers: speakers})
		if got := p.put(arpProbeBy(askerMAC)); got != "" {
			t.Errorf("who lingers answers another who lingers: %s", got)
		}
	})
}

// TestLeftToUs: when a former owner leaves an address to this node by key, it is announced to all neighbours again. A
// frame with a speaker's MAC causes only an answer.
//
// Trap: a host of the LAN that forges a speaker's probes makes the owner announce endlessly.
func TestLeftToUs(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		p.settle(Desired{Announcements: announcing(ourAnnouncements), Speakers: speakers}, 40*time.Second)
		for range 90 {
			p.lan.conn("eth0", p.protocols[0]).in <- arpProbeBy(askerMAC)
			p.lan.conn("eth0", p.protocols[1]).in <- dadBy(askerMAC)
			sentFor(p.lan, 10*time.Millisecond)
		}
		if n := p.counters.announcements[0][sent].Load(); n != 7 {
			t.Errorf("%d announcements after ninety probes with a speaker's MAC, want as many as before", n)
		}
		both := []netip.Addr{v4, v6}
		leave := func() string {
			if got := p.Owns(both, true); !slices.Equal(got, []bool{true, true}) {
				t.Errorf("owns %v", got)
			}
			got := sentFor(p.lan, 500*time.Millisecond)
			slices.Sort(got)
			return strings.Join(got, ", ")
		}
		p.Owns(both, false)
		if got := sentFor(p.lan, 500*time.Millisecond); got != nil {
			t.Errorf("after a question of a speaker that leaves nothing: %v", got)
		}
		if got := leave(); got != "0s ARP 2, 0s NA" {
			t.Errorf("after the former owner left: %s", got)
		}
		if got := leave(); got != "" {
			t.Errorf("after it left again within a second: %s", got)
		}
	})
}

// TestOwns: a node that reports an address as its own answers for it, and has announced it to all machines.
func TestOwns(t *testing.T) {
	lease := &testLease{}
	owns := func(p *play, when string, want bool) {
		p.t.Helper()
		if got := p.Owns([]netip.Addr{v4, foreign4}, false); got[0] != want || got[1] {
			p.t.Errorf("%s: owns %v", when, got)
		}
	}
	runPlay(t, lease, func(p *play) {
		p.Set(Desired{Announcements: announcing(bothFamilies(probed)[:1]), Speakers: speakers})
		synctest.Wait()
		owns(p, "while it probes", false)
		sentFor(p.lan, time.Second)
		owns(p, "once announced", true)
		lease.lapsed.Store(true)
		owns(p, "without a lease", false)
		p.Set(Desired{Announcements: announcing(ourAnnouncements[:1]), Speakers: speakers})
		lease.lapsed.Store(false)
		owns(p, "with a new lease, before the announcement", false)
		sentFor(p.lan, time.Second)
		owns(p, "with a new lease", true)
		p.Set(Desired{Yield: lb.SetOf(v4), Speakers: speakers})
		owns(p, "while it is handed over", false)
		p.settle(Desired{Announcements: announcing(bothFamilies(func(a *lb.Announcement) {
			a.MAC = askerMAC
		})[:1]), Speakers: speakers}, time.Second)
		owns(p, "as a stand-in", false)
	})
}

// TestStanding: a stand-in answers questions and announces nothing.
func TestStanding(t *testing.T) {
	standIn := Desired{Announcements: announcing(bothFamilies(func(a *lb.Announcement) {
		a.MAC = askerMAC
	})), Speakers: speakers}
	runPlay(t, nil, func(p *play) {
		p.Set(standIn)
		if got := sentFor(p.lan, 2*time.Minute); got != nil {
			t.Errorf("sent %v", got)
		}
		p.expect("as stand-in", "v4 v6")
		p.Set(Desired{Yield: lb.SetOf(v4, v6), Speakers: speakers})
		p.expect("while the owner comes back", "v4 v6")
		p.put(claim4(askerMAC))
		p.expect("when it is heard", "v6")
	})
	runPlay(t, nil, func(p *play) {
		p.Set(standIn)
		synctest.Wait()
		p.Set(Desired{Announcements: announcing(ourAnnouncements), Speakers: speakers})
		if got := sentFor(p.lan, 8*time.Millisecond); len(got) != 2 {
			t.Errorf("a takeover after that sends %v", got)
		}
	})
}

// TestOffered: a node without a new plan answers for its addresses as long as no other speaker announces them, and does
// not announce them itself. A foreign machine takes none of them. The next plan is carried out as usual.
func TestOffered(t *testing.T) {
	desired := Desired{Announcements: announcing(ourAnnouncements), Speakers: speakers}
	runPlay(t, nil, func(p *play) {
		p.settle(desired, 3*time.Second)
		p.Offer()
		if got := sentFor(p.lan, 20*time.Minute); got != nil {
			t.Errorf("sent %v", got)
		}
		p.put(claim4(otherMAC))
		p.expect("after a foreign claim", "v4 v6")
		if n := len(p.Offered()); n != 2 {
			t.Errorf("%d addresses are left, want 2", n)
		}
		p.put(claim4(askerMAC))
		p.expect("when another speaker announces one", "v6")
		if p.Offer(); len(p.Offered()) != 1 {
			t.Errorf("%d addresses are left, want 1", len(p.Offered()))
		}
		p.Set(Desired{Yield: lb.SetOf(v4, v6), Speakers: speakers})
		p.expect("by a plan that gives both away", "v6")
		p.Set(desired)
		if got := sentFor(p.lan, 8*time.Millisecond); len(got) != 2 {
			t.Errorf("by a plan that takes both, it sends %v", got)
		}
		p.expect("by that plan", "v4 v6")
	})
	runPlay(t, nil, func(p *play) {
		p.settle(Desired{Announcements: announcing(bothFamilies(func(a *lb.Announcement) {
			a.MAC = otherMAC
		})), Speakers: speakers}, time.Second)
		p.Offer()
		p.expect("as stand-in", "v4 v6")
		p.put(claim4(askerMAC))
		p.expect("as stand-in, when an owner announces one", "v6")
	})
}

// TestSetAgain: the same plan does nothing again, unless addresses were offered or released since.
func TestSetAgain(t *testing.T) {
	desired := Desired{Announcements: announcing(ourAnnouncements), Speakers: speakers}
	runPlay(t, nil, func(p *play) {
		p.settle(desired, 3*time.Second)
		table, state := p.table.Load(), p.State()
		p.Set(desired)
		if synctest.Wait(); p.table.Load() != table || !lb.Same(p.State().Addresses, state.Addresses) {
			t.Error("the same plan makes another table, or another state")
		}
		p.Offer()
		if a := p.State().Addresses[0]; a.Answered {
			t.Errorf("the state does not show what is offered: %v", a)
		}
		if p.Set(desired); len(p.Offered()) > 0 || !p.State().Addresses[0].Pending && !p.State().Addresses[0].Answered {
			t.Errorf("offered are %v after a plan that takes them back", p.Offered())
		}
		sentFor(p.lan, 3*time.Second)
		left := Desired{Yield: lb.SetOf(v4, v6), Speakers: speakers}
		p.Set(left)
		p.put(claim4(askerMAC))
		p.expect("when the new owner of one is heard", "v6")
		if p.Set(left); p.table.Load().entries.Len() != 1 || len(p.HandingOver()) != 1 {
			t.Errorf("the table still has %d addresses, and %d are handed over",
				p.table.Load().entries.Len(), len(p.HandingOver()))
		}
	})
}

// testLease is valid unless invalid is set.
type testLease struct{ lapsed atomic.Bool }

func (l *testLease) Valid() bool { return !l.lapsed.Load() }

// TestLapse: after a stop ARP/NDP replies and announcements stay suspended until the next
// plan; then the speaker behaves as if it had just started.
//
// Trap: a loser that steps down by itself, and late (PureLB).
func TestLapse(t *testing.T) {
	lease := &testLease{}
	elsewhere := Desired{Yield: lb.SetOf(v4, v6)}
	runPlay(t, lease, func(p *play) {
		p.settle(Desired{Announcements: announcing(ourAnnouncements)}, 3*time.Second)
		lease.lapsed.Store(true)
		p.expect("lapsed", "")
		if got := sentFor(p.lan, 5*time.Minute); got != nil {
			t.Errorf("lapsed, and sent %v", got)
		}
		if n := p.counters.requests[0][lapsed].Load(); n != 1 {
			t.Errorf("%d questions counted as lapsed", n)
		}
		p.Set(Desired{Announcements: announcing(ourAnnouncements)})
		p.expect("set again, not yet valid", "")
		lease.lapsed.Store(false)
		if got := sentFor(p.lan, 8*time.Millisecond); len(got) != 2 {
			t.Errorf("valid again, and sent %v", got)
		}
		p.expect("valid again", "v4 v6")
		sentFor(p.lan, 3*time.Second)
		p.Set(Desired{Announcements: announcing(ourAnnouncements)})
		if got := sentFor(p.lan, 10*time.Millisecond); got != nil {
			t.Errorf("a lapse long past starts over: %v", got)
		}
	})
	for _, first := range []string{"valid first", "set first"} {
		runPlay(t, lease, func(p *play) {
			lease.lapsed.Store(false)
			p.settle(Desired{Announcements: announcing(ourAnnouncements)}, 3*time.Second)
			lease.lapsed.Store(true)
			p.expect("lapsed", "")
			if first == "valid first" {
				lease.lapsed.Store(false)
				p.Set(elsewhere)
			} else {
				p.Set(elsewhere)
				lease.lapsed.Store(false)
			}
			p.expect(first+": what another took meanwhile is not handed over", "")
		})
	}
}

// TestNoDefenceWithoutLease: while the lease has lapsed, a foreign claim causes no frame.
func TestNoDefenceWithoutLease(t *testing.T) {
	lease := &testLease{}
	runPlay(t, lease, func(p *play) {
		p.settle(Desired{Announcements: announcing(ourAnnouncements)}, 33*time.Second)
		lease.lapsed.Store(true)
		for i, claim := range [][]byte{claim4(otherMAC), claim6(otherMAC)} {
			p.lan.conn("eth0", p.protocols[i]).in <- claim
		}
		if got := sentFor(p.lan, time.Minute); got != nil {
			t.Errorf("lapsed, and sent %v", got)
		}
	})
}
