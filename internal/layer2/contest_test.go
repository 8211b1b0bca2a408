package layer2

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

var (
	fit      = lb.Precedence{APIAge: time.Second}
	heldDown = lb.Precedence{HeldDown: true, APIAge: time.Second}
	away     = lb.Precedence{APIAge: time.Minute}
)

// contested is the question of a contest from the asker to us, sealed by a key.
func contested(key byte, asker lb.Precedence, answers bool, addr netip.Addr) []byte {
	return keyedBy(key).contest(&lb.Interface{MAC: askerMAC}, ourMAC, addr, asker, answers)
}

// wins reports whether we answer the question of a contest about an address.
func (p *play) wins(asker lb.Precedence, addr netip.Addr) bool {
	p.t.Helper()
	got := p.put(contested(1, asker, false, addr))
	if got != "" && !strings.HasPrefix(got, "us>asker echo 6 ") {
		p.t.Errorf("a contest is answered by %q", got)
	}
	return got != ""
}

// contestPlay runs a play of a node with this precedence.
func contestPlay(t *testing.T, lease Lease, own lb.Precedence, act func(p *play, set func(lb.Precedence))) {
	runPlay(t, lease, func(p *play) {
		p.SetKeys([][]byte{keyOf(1)})
		set := func(next lb.Precedence) {
			synctest.Wait()
			p.config.Precedence = func() lb.Precedence { return next }
		}
		p.config.Claimed = func() {}
		set(own)
		act(p, set)
	})
}

// TestContestPhases: only a node that owns an address, has announced it and may act wins a contest. A node that hands
// it over would leave it without an owner.
func TestContestPhases(t *testing.T) {
	lease := &testLease{}
	contestPlay(t, lease, fit, func(p *play, _ func(lb.Precedence)) {
		expect := func(when string, want bool) {
			t.Helper()
			for _, addr := range []netip.Addr{v4, v6} {
				if got := p.wins(heldDown, addr); got != want {
					t.Errorf("%s: wins %s: %v", when, addr, got)
				}
			}
			sentFor(p.lan, 0)
		}
		p.Set(Desired{Announcements: announcing(bothFamilies(probed)), Speakers: speakers})
		expect("while it probes", false)
		p.settle(Desired{Announcements: announcing(ourAnnouncements), Speakers: speakers}, 5*time.Second)
		expect("owned", true)
		for _, none := range []netip.Addr{foreign4, netip.IPv6Unspecified(), lb.Hearing, lb.NotHearing} {
			if p.wins(heldDown, none) {
				t.Errorf("wins %s", none)
			}
		}
		lease.lapsed.Store(true)
		expect("without the lease", false)
		lease.lapsed.Store(false)
		p.settle(Desired{Announcements: announcing(ourAnnouncements), Speakers: speakers}, 5*time.Second)
		expect("with it again", true)
		p.lan.stuck.Store(true)
		p.Set(Desired{Speakers: speakers})
		p.Set(Desired{Announcements: announcing(ourAnnouncements), Speakers: speakers})
		synctest.Wait()
		port := (*p.published.ports.Load())[eth0.Index]
		_, result := port.answer(p.protocols[echoIndex], contested(1, heldDown, false, v4))
		if result != notOurs {
			t.Errorf("while the link takes no announcement: %v", result)
		}
		p.lan.stuck.Store(false)
		sentFor(p.lan, time.Second)
		expect("announced again", true)
		p.Offer()
		expect("offered", false)
		p.settle(Desired{Announcements: announcing(ourAnnouncements), Speakers: speakers}, 5*time.Second)
		expect("planned again", true)
		p.settle(Desired{Yield: lb.SetOf(v4, v6), Speakers: speakers}, time.Second)
		expect("handed over", false)
		p.settle(Desired{Announcements: announcing(bothFamilies(func(a *lb.Announcement) {
			a.MAC = otherMAC
		})), Speakers: speakers}, time.Second)
		expect("as a stand-in", false)
	})
}

// TestContestPrecedence: the owner decides by what both state of themselves in this moment, and only a question with
// the key counts.
func TestContestPrecedence(t *testing.T) {
	contestPlay(t, nil, fit, func(p *play, set func(lb.Precedence)) {
		p.settle(Desired{Announcements: announcing(ourAnnouncements), Speakers: speakers}, 5*time.Second)
		for _, tt := range []struct {
			own, asker lb.Precedence
			want       bool
		}{
			{fit, fit, false},
			{fit, heldDown, true},
			{fit, away, true},
			{heldDown, fit, false},
			{heldDown, heldDown, false},
			{heldDown, away, true},
			{away, heldDown, false},
			{away, away, false},
		} {
			set(tt.own)
			if got := p.wins(tt.asker, v4); got != tt.want {
				t.Errorf("%+v wins against %+v: %v", tt.own, tt.asker, got)
			}
		}
		set(fit)
		changed := contested(1, heldDown, false, v4)
		changed[offContestFlags] ^= flagAnswers
		short := contested(1, heldDown, false, v4)
		for name, frame := range map[string][]byte{
			"another key": contested(2, heldDown, false, v4), "changed": changed, "short": short[:len(short)-1],
			"an echo with the bit": echoed(1, echoQuestion|contestBit, 7, v4),
		} {
			if got := p.put(frame); got != "" {
				t.Errorf("%s is answered by %q", name, got)
			}
		}
	})
}

// TestContestAnnouncesAgain: neighbours may have learned the MAC of a node that answered until it lost.
func TestContestAnnouncesAgain(t *testing.T) {
	contestPlay(t, nil, fit, func(p *play, _ func(lb.Precedence)) {
		p.settle(Desired{Announcements: announcing(ourAnnouncements[:1]), Speakers: speakers}, moveTime+time.Second)
		for _, answers := range []bool{false, true} {
			p.put(contested(1, heldDown, answers, v4))
			announced := len(sentFor(p.lan, time.Second)) > 0
			if announced != answers {
				t.Errorf("the loser answers: %v; announced again: %v", answers, announced)
			}
		}
	})
}

// TestClaims: the claims of speakers for owned addresses are recorded and reported.
func TestClaims(t *testing.T) {
	contestPlay(t, nil, fit, func(p *play, _ func(lb.Precedence)) {
		reports := 0
		p.config.Claimed = func() { reports++ }
		p.settle(Desired{Announcements: announcing(ourAnnouncements[:1]), Speakers: speakers}, 20*time.Second)
		question := lb.Question{Link: "eth0", MAC: askerMAC, Address: v4, Echo: true, Contest: true}
		expect := func(when string, wantReports int, want ...lb.Question) {
			t.Helper()
			synctest.Wait()
			if got := p.Claims(); !slices.Equal(got, want) || reports != wantReports {
				t.Errorf("%s: %v, %d reports; want %v, %d", when, got, reports, want, wantReports)
			}
		}
		p.put(claim4(otherMAC))
		p.put(claim6(askerMAC))
		expect("claims of a foreign machine, and for another address", 0)
		p.put(claim4(askerMAC))
		expect("a speaker's claim", 1, question)
		p.Set(Desired{Yield: lb.SetOf(v4), Speakers: speakers})
		expect("while this node still answers", 1, question)
		p.EndHandovers([]netip.Addr{v4})
		expect("when it does not", 1)
		p.Set(Desired{Announcements: announcing(ourAnnouncements[:1]), Speakers: speakers})
		synctest.Wait()
		p.put(claim4(askerMAC))
		expect("again", 2, question)
		sentFor(p.lan, claimAge+time.Millisecond)
		expect("long ago", 2)

		for i := range maxClaims + 100 {
			mac := lb.MAC{2, 0, 0, 1, byte(i >> 8), byte(i)}
			p.recordClaim(notice{addr: v4, mac: mac, link: "eth0"}, time.Now())
		}
		if n := len(p.Claims()); n != maxClaims {
			t.Errorf("%d claims are kept", n)
		}
	})
}

// TestEarlyCheck: a node that may have to yield asks soon which other speaker has an address that it took, since that
// speaker may announce nothing. The answer is a claim, and no conflict until a planned move would be over.
func TestEarlyCheck(t *testing.T) {
	for _, own := range []lb.Precedence{fit, heldDown} {
		contestPlay(t, nil, own, func(p *play, _ func(lb.Precedence)) {
			p.Set(Desired{Announcements: announcing(ourAnnouncements[:1]), Speakers: speakers})
			asks := func(during time.Duration) (asked bool) {
				for frame := range p.lan.frames(during) {
					m, _ := p.protocols[0].parse(frame, askerMAC)
					asked = asked || m.target == v4 && m.claimed != v4
				}
				return asked
			}
			if got := asks(time.Second); got != own.HeldDown {
				t.Errorf("%+v asks within a second: %v", own, got)
			}
			p.put(replyTo(ourMAC, askerMAC, askerMAC, v4))
			p.expectIs("after an early answer", "announced")
			if n := len(p.Claims()); n != 1 {
				t.Errorf("%+v: %d claims", own, n)
			}
			if !asks(moveTime + time.Second) {
				t.Errorf("%+v does not ask when a move is over", own)
			}
			p.put(replyTo(ourMAC, askerMAC, askerMAC, v4))
			p.expectIs("after a late answer", "announced against "+askerMAC.String())
		})
	}
}

// TestContestOnLAN has two nodes on a real link that both own addresses. The node that is held down receives the claims
// of the other, and answers to its questions, also where it took the addresses last. Once it is fit it gets none.
func TestContestOnLAN(t *testing.T) {
	onLAN(t, func(t *testing.T, l *lan) {
		node := func(ns *nstest.NS, own func() lb.Precedence) *Responder {
			r := configuredIn(t, ns, Config{Precedence: own, Claimed: func() {}})
			r.SetKeys([][]byte{keyOf(1)})
			return r
		}
		var isFit atomic.Bool
		loser := node(l.node, func() lb.Precedence { return lb.Precedence{HeldDown: !isFit.Load()} })
		winner := node(l.other, func() lb.Precedence { return fit })
		questions := func(ns *nstest.NS) (out []lb.Question) {
			for _, a := range []netip.Addr{v4, v6} {
				out = append(out, lb.Question{
					Link: "eth0", MAC: lb.MACFrom(ns.MAC("eth0")), Address: a, Echo: true, Contest: true,
				})
			}
			return out
		}
		expectClaims := func(when string, want []lb.Question) {
			t.Helper()
			nstest.Until(t, within, when, func() bool {
				got := loser.Claims()
				slices.SortFunc(got, func(a, b lb.Question) int { return a.Address.Compare(b.Address) })
				return slices.Equal(got, want)
			})
		}
		expectOwned := func(r *Responder) {
			t.Helper()
			nstest.Until(t, within, "owned", func() bool {
				return !slices.Contains(r.Owns([]netip.Addr{v4, v6}, false), false)
			})
		}
		loser.Set(l.here())
		expectOwned(loser)
		winner.Set(l.here())
		expectClaims("the other takes the addresses", questions(l.other))
		expectOwned(winner)
		expectAnswers(t, "the loser asks", loser.Ask(t.Context(), loser.Claims(), patience), 3, 3)

		loser.Set(Desired{Speakers: l.speakers()})
		expectClaims("it leaves them", nil)
		loser.Set(l.here())
		expectClaims("it takes them again", questions(l.other))
		isFit.Store(true)
		const short = 100 * time.Millisecond
		expectAnswers(t, "a fit node asks", loser.Ask(t.Context(), questions(l.other), short), 0, 0)
	})
}
