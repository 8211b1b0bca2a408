package members

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
)

// owner owns some addresses, and records what it is asked and told.
type owner struct {
	owns    []netip.Addr
	age     time.Duration
	mu      sync.Mutex
	asked   []string
	answers []Answer
}

func (o *owner) Owns(addrs []netip.Addr, leaves bool) (owns []bool, age time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, fmt.Sprint(len(addrs), leaves))
	for _, a := range addrs {
		owns = append(owns, slices.Contains(o.owns, a))
	}
	return owns, o.age
}

func (o *owner) Answered(a Answer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answers = append(o.answers, a)
}

func (o *owner) told() []Answer {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.answers)
}

var (
	owned4, owned6 = netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("2001:db8::100")
	other4         = netip.MustParseAddr("192.0.2.101")
)

// A member asks another one, and gets the answer of that one; a member that has no Owner, as older ones, ignores it.
func TestQuestion(t *testing.T) {
	port, key := freePort(t), bytes.Repeat([]byte{7}, 32)
	asks, has := &owner{}, &owner{owns: []netip.Addr{owned4, owned6}, age: 7 * time.Second}
	a := startOwner(t, asks, port, "127.0.0.1", "a", key)
	b := startOwner(t, has, port, "127.0.0.2", "b", key, "a=127.0.0.1")
	c := start(t, port, "127.0.0.3", "c", key, "a=127.0.0.1")
	for _, m := range []member{a, b, c} {
		eventually(t, "members see each other", m.sees("a", "b", "c"))
	}
	want := Answer{From: "b", Addresses: []netip.Addr{owned4, other4, owned6}, Leaves: true, Owns: []bool{true, false, true}, Age: 7 * time.Second}
	eventually(t, "the answer", func() bool {
		a.Ask("c", want.Addresses, false)
		a.Ask("nobody", want.Addresses, false)
		a.Ask("b", want.Addresses, true)
		return len(asks.told()) > 0
	})
	if got := asks.told()[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("told %+v, want %+v", got, want)
	}
	has.mu.Lock()
	asked := has.asked[0]
	has.mu.Unlock()
	if asked != "3 true" {
		t.Errorf("asked %q", asked)
	}
	before := len(asks.told())
	many := slices.Repeat([]netip.Addr{owned6}, 1000)
	eventually(t, "all answers", func() bool {
		a.Ask("b", many, false)
		asks.mu.Lock()
		defer asks.mu.Unlock()
		n := 0
		for _, answer := range asks.answers[before:] {
			n += len(answer.Addresses)
		}
		return n >= len(many)
	})
}

// silent is a membership that is not started, with a living member b and an outstanding question to it.
func silent(t *testing.T, o Owner) *Members {
	m, err := New(Config{Owner: o, Config: heartbeat.Config{
		Log: slog.New(slog.DiscardHandler), NodeName: "a", Keys: [][]byte{bytes.Repeat([]byte{7}, 32)}, Changed: func() {},
	}})
	if err != nil {
		t.Fatal(err)
	}
	m.addresses["b"] = netip.MustParseAddr("127.0.0.2")
	return m
}

func question(from string, addrs ...netip.Addr) []byte {
	b := append([]byte{questionVersion, kindQuestion, 0, 0, 0, 0, 0, 0, 0, 9, byte(len(from))}, from...)
	body, _ := encodeAddresses(addrs, maxQuestion)
	return append(b, body...)
}

// An answer counts once, soon, and for the question that it has the nonce of.
func TestForgedMessages(t *testing.T) {
	o := &owner{owns: []netip.Addr{owned4}}
	m := silent(t, o)
	addrs := []netip.Addr{owned4, other4}
	answer := func(nonce byte) []byte {
		return encodeAnswer([]byte{0, 0, 0, 0, 0, 0, 0, nonce}, []bool{true, false}, math.MaxInt64)
	}
	m.questions.expect(1, asked{Answer{From: "b", Addresses: addrs}, time.Now()})
	m.questions.expect(2, asked{Answer{From: "b", Addresses: addrs}, time.Now().Add(-answerTime - time.Millisecond)})
	for _, nonce := range []byte{2, 3, 1, 1} {
		m.hear(answer(nonce))
	}
	want := []Answer{{From: "b", Addresses: addrs, Owns: []bool{true, false}, Age: math.MaxUint32 * time.Millisecond}}
	if got := o.told(); !reflect.DeepEqual(got, want) {
		t.Errorf("told %+v, want %+v", got, want)
	}
	m.hear(question("b", addrs...))
	if len(o.asked) != 1 {
		t.Error("a member is not answered")
	}
	m.questions.asked = map[uint64]asked{}
	for i := range 1000 {
		m.questions.expect(uint64(i), asked{at: time.Now().Add(time.Duration(i) * time.Second)})
	}
	if n := len(m.questions.asked); n > 3 {
		t.Errorf("%d questions that nobody answered are remembered", n)
	}
}

func FuzzHear(f *testing.F) {
	f.Add(question("b", owned4, owned6))
	f.Add(encodeAnswer([]byte{0, 0, 0, 0, 0, 0, 0, 1}, []bool{true}, time.Second))
	f.Fuzz(func(t *testing.T, b []byte) {
		o := &owner{}
		m := silent(t, o)
		m.questions.expect(1, asked{Answer{From: "b", Addresses: []netip.Addr{owned4}}, time.Now()})
		m.hear(b)
		for _, a := range o.told() {
			if len(a.Owns) != len(a.Addresses) {
				t.Errorf("%x: %+v", b, a)
			}
		}
	})
}
