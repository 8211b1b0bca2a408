package layer2

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// keyOf makes keys that differ by an octet.
func keyOf(n byte) []byte { return bytes.Repeat([]byte{n}, 32) }

func keyedBy(keys ...byte) *echoCodec {
	var all [][]byte
	for _, n := range keys {
		all = append(all, keyOf(n))
	}
	e := &echoCodec{}
	e.setKeys(all)
	return e
}

// echoed is an echo from the asker to us, sealed by a key.
func echoed(key, kind byte, nonce uint64, addr netip.Addr) []byte {
	return keyedBy(key).encode(&lb.Interface{MAC: askerMAC}, ourMAC, kind, nonce, addr)
}

func echoTests() []frameTest {
	question := func(change func(frame []byte)) []byte {
		frame := echoed(1, echoQuestion, 7, v4)
		change(frame)
		return frame
	}
	return []frameTest{
		{"question", question(func([]byte) {}), answered},
		{"IPv6", echoed(1, echoQuestion, 7, v6), answered},
		{"padded", append(echoed(1, echoQuestion, 7, v4), 0, 0, 0), answered},
		{"about an address of another", echoed(1, echoQuestion, 7, foreign4), notOurs},
		{"answer", echoed(1, echoAnswer, 7, foreign4), notRequest},
		{"another key", echoed(2, echoQuestion, 7, v4), badKey},
		{"its prefix alone", question(func(f []byte) { f[offTag]++ }), badKey},
		{"about another address", question(func(f []byte) { f[offAddress+15]++ }), badKey},
		{"another nonce", question(func(f []byte) { f[offNonce]++ }), badKey},
		{"forwarded by another machine", question(func(f []byte) { copy(f[offSource:], otherMAC[:]) }), badKey},
		{"question as answer", question(func(f []byte) { f[offKind] = echoAnswer }), badKey},
		{"no nonce", echoed(1, echoQuestion, 0, v4), badFormat},
		{"another kind", echoed(1, 3, 7, v4), badFormat},
		{"another version", question(func(f []byte) { f[offVersion]++ }), badFormat},
		{"short", echoed(1, echoQuestion, 7, v4)[:echoLen-1], badLength},
		{"to all", question(func(f []byte) { copy(f, allNodes.mac[:]) }), notToUs},
		{"to another", question(func(f []byte) { copy(f, otherMAC[:]) }), notToUs},
		{"ours", question(func(f []byte) { copy(f[offSource:], ourMAC[:]) }), ownFrame},
		{"of another protocol", arpRequest(v4, nil), notRequest},
	}
}

// TestEchoFilter: the kernel passes questions to ports, answers to askers, and nothing else.
func TestEchoFilter(t *testing.T) {
	proto := keyedBy(1).protocol()
	for _, tt := range []struct {
		name             string
		frame            []byte
		question, answer bool
	}{
		{"question", echoed(1, echoQuestion, 7, v4), true, false},
		{"answer", echoed(1, echoAnswer, 7, v6), false, true},
		{"another version",
			slices.Concat(echoed(1, echoQuestion, 7, v4)[:offVersion], []byte{9, echoQuestion}, make([]byte, 40)), false, false},
		{"to all", slices.Concat(allNodes.mac[:], echoed(1, echoQuestion, 7, v4)[offSource:]), false, false},
		{"question of a contest", contested(1, heldDown, true, v4), true, false},
		{"answer of a contest", echoed(1, echoAnswer|contestBit, 7, v6), false, true},
		{"another kind", echoed(1, 3, 7, v4), false, false},
		{"short", echoed(1, echoQuestion, 7, v4)[:offVersion], false, false},
	} {
		if got := runs(t, proto.filter(nil), tt.frame); got != tt.question {
			t.Errorf("%s passes to a port: %v", tt.name, got)
		}
		if got := runs(t, proto.answers, tt.frame); got != tt.answer {
			t.Errorf("%s passes to the asker: %v", tt.name, got)
		}
	}
}

// TestEchoPhases: an echo is answered when a neighbour's question would be, by the owner or the former owner, and not
// by a stand-in. An echo about no address is answered whenever the key is right.
func TestEchoPhases(t *testing.T) {
	lease, none, keyed := &testLease{}, netip.IPv6Unspecified(), true
	runPlay(t, lease, func(p *play) {
		p.SetKeys([][]byte{keyOf(1)})
		expect := func(when string, answered bool) {
			t.Helper()
			for _, addr := range []netip.Addr{v4, v6, none} {
				want := ""
				if answered || addr == none && keyed {
					want = "us>asker echo 2 7 " + addr.String()
				}
				if got := p.put(echoed(1, echoQuestion, 7, addr)); got != want {
					t.Errorf("%s: %q, want %q", when, got, want)
				}
			}
			sentFor(p.lan, 0)
		}
		p.Set(Desired{Announcements: announcing(bothFamilies(probed)), Speakers: speakers})
		expect("before it is ours", false)
		time.Sleep(5 * time.Second)
		sentFor(p.lan, 0)
		expect("ours", true)
		lease.lapsed.Store(true)
		expect("without the lease", false)
		lease.lapsed.Store(false)
		p.Set(Desired{Announcements: announcing(ourAnnouncements), Speakers: speakers})
		expect("with it again", true)
		p.SetKeys([][]byte{keyOf(2), keyOf(1)})
		expect("by an older key, which is still accepted", true)
		p.SetKeys([][]byte{keyOf(2)})
		keyed = false
		expect("by a key that is not accepted", false)
		keyed = true
		p.SetKeys([][]byte{keyOf(1)})
		p.Set(Desired{Yield: lb.SetOf(v4, v6), Speakers: speakers})
		synctest.Wait()
		sentFor(p.lan, 0)
		expect("while it is handed over", true)
		p.Set(Desired{Announcements: announcing(bothFamilies(func(a *lb.Announcement) {
			a.MAC = otherMAC
		})), Speakers: speakers})
		synctest.Wait()
		expect("as a stand-in", false)
	})
}

// TestEchoAboutHearing: a speaker answers whether it hears another machine. It does not answer if it does not know, or
// may not act.
func TestEchoAboutHearing(t *testing.T) {
	lease := &testLease{}
	runPlay(t, lease, func(p *play) {
		p.SetKeys([][]byte{keyOf(1)})
		p.Set(Desired{Announcements: announcing(ourAnnouncements), Speakers: speakers})
		synctest.Wait()
		sentFor(p.lan, 0)
		expect := func(when, hearing, notHearing string) {
			t.Helper()
			for about, want := range map[netip.Addr]string{lb.Hearing: hearing, lb.NotHearing: notHearing} {
				if got := p.put(echoed(1, echoQuestion, 7, about)); got != want {
					t.Errorf("%s, about %s: %q, want %q", when, about, got, want)
				}
			}
		}
		expect("it does not know", "", "")
		hears := true
		p.config.ReceivesHeartbeats = func() bool { return hears }
		expect("it hears one", "us>asker echo 2 7 ::1", "")
		hears = false
		expect("it hears none", "", "us>asker echo 2 7 ::2")
		lease.lapsed.Store(true)
		expect("its lease has lapsed", "", "")
	})
}

// TestWhatCountsAsEcho: only an answer of the asked speaker counts, about the asked address, with the nonce of the
// question.
func TestWhatCountsAsEcho(t *testing.T) {
	r := newFakeLAN().responder()
	r.echo = keyedBy(1)
	proto := r.echo.protocol()
	asks := proto.question(&eth0, askerMAC, v4)
	if (&echoCodec{}).protocol().question(&eth0, askerMAC, v4) != nil {
		t.Error("asks without a key")
	}
	nonce := nonceOf(asks)
	for _, tt := range []struct {
		name           string
		frame          []byte
		contest, count bool
	}{
		{"its answer", echoed(1, echoAnswer, nonce, v4), false, true},
		{"an answer to another question", echoed(1, echoAnswer, nonce+1, v4), false, false},
		{"about another address", echoed(1, echoAnswer, nonce, foreign4), false, false},
		{"a question", echoed(1, echoQuestion, nonce, v4), false, false},
		{"with another key", echoed(2, echoAnswer, nonce, v4), false, false},
		{"by ARP", replyTo(ourMAC, askerMAC, askerMAC, v4), false, false},
		{"of a contest to a contest", echoed(1, echoAnswer|contestBit, nonce, v4), true, true},
		{"of a contest", echoed(1, echoAnswer|contestBit, nonce, v4), false, false},
		{"to a contest", echoed(1, echoAnswer, nonce, v4), true, false},
	} {
		a := &openQuestion{frame: asks}
		in := &inquiry{r: r, speakers: speakers, questions: map[lb.Question]*openQuestion{
			{Link: "eth0", MAC: askerMAC, Address: v4, Echo: true, Contest: tt.contest}: a,
		}}
		for _, p := range []protocol{proto, arpProtocol()} {
			in.countAnswer(&tap{socket: socket{link: eth0, proto: p}}, tt.frame)
		}
		if counted := a.answers == 1; counted != tt.count {
			t.Errorf("%s counts: %v", tt.name, counted)
		}
	}
}
