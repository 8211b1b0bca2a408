package members

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/heartbeat"
)

// owner owns some addresses, and records the questions and answers that it receives.
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

func (o *owner) received() []Answer {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.answers)
}

var (
	owned4, owned6 = netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("2001:db8::100")
	other4         = netip.MustParseAddr("192.0.2.101")
)

// A member asks another one, and gets its answer. A member without an Owner, such as an older one, ignores it.
func TestQuestion(t *testing.T) {
	port, key := freePort(t), bytes.Repeat([]byte{7}, 32)
	asks, has := &owner{}, &owner{owns: []netip.Addr{owned4, owned6}, age: 7 * time.Second}
	a := startWith(t, func(c *Config) { c.Owner = asks }, port, "127.0.0.1", "a", key)
	b := startWith(t, func(c *Config) { c.Owner = has }, port, "127.0.0.2", "b", key, "a=127.0.0.1")
	c := start(t, port, "127.0.0.3", "c", key, "a=127.0.0.1")
	for _, m := range []member{a, b, c} {
		eventually(t, "members see each other", m.sees("a", "b", "c"))
	}
	want := Answer{
		From: "b", Addresses: []netip.Addr{owned4, other4, owned6}, Leaves: true, Owns: []bool{true, false, true},
		Age: 7 * time.Second,
	}
	eventually(t, "the answer", func() bool {
		a.Ask("c", want.Addresses, false)
		a.Ask("no member", want.Addresses, false)
		a.Ask("b", want.Addresses, true)
		return len(asks.received()) > 0
	})
	if got := asks.received()[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("told %+v, want %+v", got, want)
	}
	has.mu.Lock()
	asked := has.asked[0]
	has.mu.Unlock()
	if asked != "3 true" {
		t.Errorf("asked %q", asked)
	}
	before := len(asks.received())
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

// TestQuestionPastGossip loses a member in gossip, as after a fault of the network. It is asked all the same, and
// answers.
func TestQuestionPastGossip(t *testing.T) {
	port, key := freePort(t), bytes.Repeat([]byte{7}, 32)
	asks, has := &owner{}, &owner{owns: []netip.Addr{owned4}}
	a := startWith(t, func(c *Config) { c.Owner = asks }, port, "127.0.0.1", "a", key, "b=127.0.0.2")
	b := startWith(t, func(c *Config) { c.Owner = has }, port, "127.0.0.2", "b", key, "a=127.0.0.1")
	for _, m := range []member{a, b} {
		eventually(t, "members see each other", m.sees("a", "b"))
	}

	for m, other := range map[*Members]string{a.Members: "b", b.Members: "a"} {
		m.mu.Lock()
		delete(m.addresses, other)
		m.mu.Unlock()
	}
	eventually(t, "the answer", func() bool {
		a.Ask("b", []netip.Addr{owned4}, true)
		return len(asks.received()) > 0
	})
}

// silent is a membership that is not started, with a living member b and an outstanding question to it.
func silent(t *testing.T, o Owner) *Members {
	m, err := New(Config{Owner: o, Config: heartbeat.Config{
		Log: slog.New(slog.DiscardHandler), NodeName: "a", Keys: [][]byte{bytes.Repeat([]byte{7}, 32)}, Changed: func() {},
	}})
	must(t, err)
	m.addresses["b"] = netip.MustParseAddr("127.0.0.2")
	return m
}

func question(from string, addrs ...netip.Addr) []byte {
	b := append([]byte{questionVersion, kindQuestion, 0, 0, 0, 0, 0, 0, 0, 9, byte(len(from))}, from...)
	body, _ := encodeAddresses(addrs, maxQuestion)
	return append(b, body...)
}

// An answer counts once, in time, and only for the question with its nonce.
func TestForgedMessages(t *testing.T) {
	o := &owner{owns: []netip.Addr{owned4}}
	m := silent(t, o)
	addrs := []netip.Addr{owned4, other4}
	answer := func(nonce byte) []byte {
		return encodeAnswer([]byte{0, 0, 0, 0, 0, 0, 0, nonce}, []bool{true, false}, math.MaxInt64)
	}
	m.addPending(1, pendingQuestion{Answer{From: "b", Addresses: addrs}, time.Now()})
	m.addPending(2, pendingQuestion{Answer{From: "b", Addresses: addrs}, time.Now().Add(-answerTime - time.Millisecond)})
	for _, nonce := range []byte{2, 3, 1, 1} {
		m.receive(answer(nonce))
	}
	want := []Answer{{From: "b", Addresses: addrs, Owns: []bool{true, false}, Age: math.MaxUint32 * time.Millisecond}}
	if got := o.received(); !reflect.DeepEqual(got, want) {
		t.Errorf("told %+v, want %+v", got, want)
	}
	m.receive(question("b", addrs...))
	if len(o.asked) != 1 {
		t.Error("a member is not answered")
	}
	m.pending = map[uint64]pendingQuestion{}
	for i := range 1000 {
		m.addPending(uint64(i), pendingQuestion{askedAt: time.Now().Add(time.Duration(i) * time.Second)})
	}
	if n := len(m.pending); n > 3 {
		t.Errorf("%d unanswered questions are pending", n)
	}
}

func FuzzHear(f *testing.F) {
	f.Add(question("b", owned4, owned6))
	f.Add(encodeAnswer([]byte{0, 0, 0, 0, 0, 0, 0, 1}, []bool{true}, time.Second))
	f.Fuzz(func(t *testing.T, b []byte) {
		o := &owner{}
		m := silent(t, o)
		m.addPending(1, pendingQuestion{Answer{From: "b", Addresses: []netip.Addr{owned4}}, time.Now()})
		m.receive(b)
		for _, a := range o.received() {
			if len(a.Owns) != len(a.Addresses) {
				t.Errorf("%x: %+v", b, a)
			}
		}
	})
}

// lines counts what is logged, by level.
type lines struct {
	slog.Handler
	debug, info *atomic.Int64
}

func (l lines) Enabled(context.Context, slog.Level) bool { return true }
func (l lines) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		l.info.Add(1)
	} else {
		l.debug.Add(1)
	}
	return nil
}

func startLogged(t *testing.T) (at string, l lines) {
	t.Helper()
	l = lines{slog.DiscardHandler, new(atomic.Int64), new(atomic.Int64)}
	port := freePort(t)
	limiter := &daemon.ConnLimiter{Max: 64, MaxPerAddress: 4}
	m := startWith(t, func(c *Config) {
		c.Log, c.Admit = slog.New(l), limiter.Admit
	}, port, "127.0.0.1", "n1", make([]byte, 32))
	t.Cleanup(func() { m.leave(t) })
	at = net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
	eventually(t, "the port is open", func() bool {
		c, err := net.Dial("tcp", at)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return at, l
}

// TestForgedGossipLog: packets of strangers do not fill the log.
func TestForgedGossipLog(t *testing.T) {
	at, l := startLogged(t)
	c, err := net.Dial("udp", at)
	must(t, err)
	defer c.Close()
	packets := [][]byte{
		{255},                                    // too short
		[]byte("junk of a pod"),                  // without our label
		append([]byte("\xf4\x08holdfast"), 9, 9), // with it, and no key
	}
	const enough = 1000
	eventually(t, "packets were refused", func() bool {
		for _, p := range packets {
			_, _ = c.Write(p)
		}
		return l.info.Load()+l.debug.Load() > enough
	})
	if got := l.info.Load(); got > enough/10 {
		t.Errorf("%d lines in the log for some %d packets", got, enough)
	}
}

// TestForgedGossipStreams: a stranger cannot make this process keep what it sends, however much it sends at once.
func TestForgedGossipStreams(t *testing.T) {
	at, _ := startLogged(t)
	const streams, size = 12, 8 << 20
	message := append([]byte("\xf4\x08holdfast"), 10) // label and encryptMsg of memberlist
	message = append(binary.BigEndian.AppendUint32(message, size), make([]byte, size)...)
	answers := make(chan int64, streams)
	for range streams {
		go func() {
			c, err := net.Dial("tcp", at)
			if err != nil {
				answers <- 0
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			_, _ = c.Write(message)
			n, _ := io.Copy(io.Discard, c)
			answers <- n
		}()
	}
	taken := 0
	for range streams {
		if <-answers > 0 { // it was read to its end, and refused
			taken++
		}
	}
	if taken > 0 {
		t.Errorf("of %d messages of %d MiB %d were taken as a whole", streams, size>>20, taken)
	}
}
