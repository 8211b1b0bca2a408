package layer2

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// patience is enough for an answer on a busy machine. Answers arrive sooner, and silent
// machines are asked with less.
const patience = 5 * time.Second

// both asks one machine for an address of each family.
func both(mac lb.MAC, a, b netip.Addr) []lb.Question {
	return []lb.Question{{Link: "eth0", MAC: mac, Address: a}, {Link: "eth0", MAC: mac, Address: b}}
}

func expectAnswers(t *testing.T, what string, got []int, want ...int) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %d answers, want %d", what, got, want)
	}
}

// TestAsk with real kernels: a Responder answers for the addresses it announces, whether
// the asker has an address in the subnet or not. A kernel answers for its own address.
// There is no answer for another address or from a missing machine. The node that asks
// announces nothing and has no port.
func TestAsk(t *testing.T) {
	onLAN(t, func(t *testing.T, l *lan) {
		outside := netip.MustParseAddr("198.51.100.7") // of no subnet here
		l.second = responderIn(t, l.other, Timers{AnnounceTimes: []time.Duration{0, time.Millisecond}})
		set := l.here()
		set.Announcements = set.Announcements.Put(outside, &lb.Announcement{Address: outside})
		l.second.Set(set)
		owner, far := lb.MACFrom(l.other.MAC("eth0")), lb.MACFrom(l.far.MAC("eth0"))
		announced := func(family int) uint64 { return l.second.counters.announcements[family][sent].Load() }
		nstest.Until(t, within, "all are announced", func() bool { return announced(0) >= 4 && announced(1) >= 2 })
		nstest.Until(t, within, "links known", func() bool { return len(l.first.config.Links()) > 0 })

		ctx := t.Context()
		expectAnswers(t, "a Responder", l.first.Ask(ctx, both(owner, v4, v6), patience), 3, 3)
		expectAnswers(t, "a Responder, without an address of the subnet",
			l.first.Ask(ctx, []lb.Question{{Link: "eth0", MAC: owner, Address: outside}}, patience), 3)
		expectAnswers(t, "a kernel", l.first.Ask(ctx, both(far, asker4, asker6), patience), 3, 3)
		expectAnswers(t, "a kernel, at its link-local address",
			l.first.Ask(ctx, []lb.Question{{Link: "eth0", MAC: far, Address: netip.MustParseAddr("fe80::2")}},
				patience), 3)

		echoes := both(owner, v4, v6)
		echoes[0].Echo, echoes[1].Echo = true, true
		expectAnswers(t, "an echo without a key", l.first.Ask(ctx, echoes, patience), lb.Unasked, lb.Unasked)
		for _, r := range []*Responder{l.first, l.second} {
			r.SetKeys([][]byte{keyOf(1)})
		}
		expectAnswers(t, "an echo", l.first.Ask(ctx, append(echoes, both(owner, v4, v6)...), patience), 3, 3, 3, 3)

		nstest.Until(t, patience, "one answer to one question", func() bool {
			got := l.first.Ask(ctx, both(owner, v4, v6), 2*questionInterval-1)
			if slices.Max(got) > 1 {
				t.Fatalf("%v answers in a time for one question", got)
			}
			return slices.Min(got) == 1
		})
		const short = 100 * time.Millisecond
		for i := range echoes {
			echoes[i].MAC = far
		}
		expectAnswers(t, "a kernel has no echo", l.first.Ask(ctx, echoes, short), 0, 0)
		expectAnswers(t, "a MAC that no machine has", l.first.Ask(ctx, both(askerMAC, v4, v6), short), 0, 0)
		expectAnswers(t, "a machine that does not have the address", l.first.Ask(ctx, both(far, v4, v6), short), 0, 0)
		expectAnswers(t, "an address that no machine has", l.first.Ask(ctx, both(owner, foreign4, foreign6), short), 0, 0)
		expectAnswers(t, "ourselves, and a link that is not there", l.first.Ask(ctx, []lb.Question{
			{Link: "eth0", MAC: lb.MACFrom(l.node.MAC("eth0")), Address: v4}, {Link: "eth9", MAC: owner, Address: v4},
		}, short), lb.Unasked, lb.Unasked)
		if n := len(l.first.State().Links); n != 0 {
			t.Errorf("%d links are in use for having asked", n)
		}
		// No question counts as one of a handover, which would cause announcements.
		if n := announced(0); n != 4 {
			t.Errorf("%d announcements, want as many as before", n)
		}
		l.node.SetDown("eth0")
		nstest.Until(t, within, "link down", func() bool { return !l.first.config.Links()[1].Up })
		expectAnswers(t, "on a link that is down", l.first.Ask(ctx, both(owner, v4, v6), short), lb.Unasked, lb.Unasked)
	})
}

// TestAskBesideAPort: a node that announces on the link can ask there too, and continues to answer.
func TestAskBesideAPort(t *testing.T) {
	onLAN(t, func(t *testing.T, l *lan) {
		mine := []lb.Announcement{{Address: foreign4}, {Address: foreign6}}
		l.first.Set(Desired{Announcements: announcing(mine), Speakers: l.speakers()})
		l.second.Set(l.here())
		for _, addr := range []netip.Addr{v4, v6, foreign4, foreign6} {
			nstest.Until(t, within, "answer", func() bool { return l.ask(t, addr) != "" })
		}
		owner := lb.MACFrom(l.other.MAC("eth0"))
		expectAnswers(t, "beside a port", l.first.Ask(t.Context(), both(owner, v4, v6), patience), 3, 3)
		far := lb.MACFrom(l.far.MAC("eth0"))
		foreign := l.first.Foreign("eth0", 8)
		if len(foreign) != 2 || foreign[0] != (lb.Question{Link: "eth0", MAC: far, Address: asker4}) ||
			foreign[1].MAC != far || !foreign[1].Address.Is6() {
			t.Errorf("the far host, which asked, is known as %v", foreign)
		}
		expectAnswers(t, "who asked", l.first.Ask(t.Context(), foreign, patience), 3, 3)
		// Others that ask and never answer displace only each other.
		w := farWire(t, l.far, l.first.protocols[0])
		known := func(n byte) bool {
			mac, addr := host(n)
			return slices.Contains(l.first.Foreign("eth0", 20), lb.Question{Link: "eth0", MAC: mac, Address: addr})
		}
		forged := byte(100)
		nstest.Until(t, within, "one of more machines than there is room for", func() bool {
			forged = 100 + (forged-99)%100
			before := l.first.counters.requests[0][answered].Load()
			write(t, w, askedBy(forged, foreign4))
			nstest.Until(t, within, "answer", func() bool { return l.first.counters.requests[0][answered].Load() > before })
			return forged > 100+maxMachines && known(forged)
		})
		if at := l.first.Foreign("eth0", 20); !slices.Contains(at, foreign[0]) {
			t.Errorf("the far host, which answered, is displaced: %v", at)
		}
		if l.ask(t, foreign4) == "" || l.ask(t, foreign6) == "" {
			t.Error("no answer any more")
		}
	})
}

// TestAskManyAtOnce: a hundred addresses of one machine, during another inquiry.
func TestAskManyAtOnce(t *testing.T) {
	onLAN(t, func(t *testing.T, l *lan) {
		set := manyHere(100)
		l.second.Set(Desired{Announcements: announcing(set), Speakers: l.speakers()})
		owner := lb.MACFrom(l.other.MAC("eth0"))
		var questions []lb.Question
		for _, a := range set {
			questions = append(questions, lb.Question{Link: "eth0", MAC: owner, Address: a.Address})
		}
		for _, addr := range []netip.Addr{set[9].Address, set[99].Address} {
			nstest.Until(t, within, "answer", func() bool { return l.ask(t, addr) != "" })
		}
		beside := make(chan []int)
		go func() { beside <- l.first.Ask(t.Context(), both(askerMAC, v4, v6), time.Second) }()
		start := time.Now()
		got := l.first.Ask(t.Context(), questions, patience)
		t.Logf("%d questions are answered within %v", len(questions), time.Since(start).Round(time.Millisecond/10))
		for i, n := range got {
			if n != 3 {
				t.Errorf("%v: %d answers", questions[i], n)
			}
		}
		expectAnswers(t, "at the same time", <-beside, 0, 0)
	})
}

// TestAskersOfOthersAddresses: a node that announces nothing learns from a host's question for an address of another
// node, which is dead, that the host is there. It does not learn that from a question for an address without an owner.
func TestAskersOfOthersAddresses(t *testing.T) {
	onLAN(t, func(t *testing.T, l *lan) {
		d := l.elsewhere()
		d.Owners = lb.MapOf(map[netip.Addr]string{v4: "other", v6: "other"})
		nstest.Until(t, within, "links known", func() bool { return len(l.first.config.Links()) > 1 })
		l.first.Set(d)
		far := lb.MACFrom(l.far.MAC("eth0"))
		for _, tt := range []struct{ nobodys, dead, asker netip.Addr }{{foreign4, v4, asker4}, {foreign6, v6, asker6}} {
			knows := func() bool {
				return slices.Contains(l.first.Foreign("eth0", 8), lb.Question{Link: "eth0", MAC: far, Address: tt.asker})
			}
			for range 3 {
				l.far.Send(tt.nobodys)
			}
			if knows() {
				t.Errorf("%s is known before it asked for an address of ours", tt.asker)
			}
			nstest.Until(t, within, tt.asker.String()+" is known", func() bool { l.far.Send(tt.dead); return knows() })
		}
		// A card or a switch that knows groups passes IPv6 questions to those who joined.
		nstest.Until(t, within, "in the group of the dead node's address", func() bool { return member(t, l.realNetwork) })
		l.first.Set(l.elsewhere())
		nstest.Until(t, within, "not in it any more, once the address is gone", func() bool {
			return !member(t, l.realNetwork)
		})
	})
}

// TestWhoHas with real kernels: the speaker that announces an address answers; with a foreign machine in conflict both
// do; none answers for an address that no machine has.
func TestWhoHas(t *testing.T) {
	onLAN(t, func(t *testing.T, l *lan) {
		l.second.Set(l.here())
		owner, far := lb.MACFrom(l.other.MAC("eth0")), lb.MACFrom(l.far.MAC("eth0"))
		nstest.Until(t, within, "links known", func() bool { return len(l.first.config.Links()) > 0 })
		us := l.first.config.Links()[len(l.first.config.Links())-1]
		expect := func(addrs []netip.Addr, want ...lb.MAC) {
			t.Helper()
			for _, a := range addrs {
				nstest.Until(t, within, fmt.Sprintf("%s at %v", a, want), func() bool {
					got, err := l.first.WhoHas(t.Context(), us, a, 300*time.Millisecond)
					return err == nil && len(got) == len(want) && !slices.ContainsFunc(want, func(mac lb.MAC) bool {
						return !got[mac]
					})
				})
			}
		}
		ours := []netip.Addr{v4, v6}
		expect(ours, owner)
		other := make(chan error)
		go func() { // answers to another question do not count
			_, err := l.first.WhoHas(t.Context(), us, v4, time.Second)
			other <- errors.Join(err, func() error { _, err := l.first.WhoHas(t.Context(), us, v6, time.Second); return err }())
		}()
		expect([]netip.Addr{foreign4, foreign6})
		if err := <-other; err != nil {
			t.Error(err)
		}
		l.far.AddAddress("eth0", v4.String()+"/24", v6.String()+"/64")
		expect(ours, owner, far)
		l.node.SetDown("eth0")
		if got, err := l.first.WhoHas(t.Context(), us, v4, time.Second); err == nil ||
			!strings.HasSuffix(err.Error(), "it is down, or has no address of the family") {
			t.Errorf("on a link that is down it got %v, %v", got, err)
		}
	})
}
