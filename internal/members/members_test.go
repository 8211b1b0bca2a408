package members

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/prometheus/client_golang/prometheus"
)

// heartbeats is the command that runs the test program as a heartbeat process.
var heartbeats = []string{os.Args[0], "heartbeats"}

func TestMain(m *testing.M) {
	if slices.Equal(os.Args, heartbeats) {
		if heartbeat.Serve(func(net.Conn, func() bool) {}) != nil {
			os.Exit(1) // at once, as the real one
		}
		return
	}
	// with the race detector, a process would outlast its time to leave
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	os.Exit(m.Run())
}

// member is one Members on an address of the loopback.
type member struct {
	*Members
	stop  func()
	ended chan error
}

func start(t *testing.T, port uint16, address, name string, key []byte, join ...string) member {
	t.Helper()
	return startWith(t, func(*Config) {}, port, address, name, key, join...)
}

func startWith(
	t *testing.T,
	change func(*Config),
	port uint16,
	address, name string,
	key []byte,
	join ...string,
) member {
	t.Helper()
	c := Config{GossipPort: port, Admit: (&daemon.ConnLimiter{Max: 64, MaxPerAddress: 64}).Admit, Config: heartbeat.Config{
		Log: slog.New(slog.DiscardHandler), NodeName: name, Address: netip.MustParseAddr(address),
		Port: port + 1, Keys: [][]byte{key}, Changed: func() {}, Guest: func(net.Conn) {},
		Ask: func(string) detect.WireAnswer { return detect.WireAnswer{} },
		// On a busy machine a process may not run for a while, and is not dead.
		Timers: detect.Timers{Multiplier: 200}, Command: heartbeats, Ordinary: true,
	}}
	change(&c)
	m, err := New(c)
	must(t, err)
	speakers := map[string]netip.Addr{}
	for _, j := range join {
		speaker, at, _ := strings.Cut(j, "=")
		speakers[speaker] = netip.MustParseAddr(at)
	}
	m.SetSpeakers(speakers)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	return member{m, cancel, ended}
}

// leave stops a member in good order.
func (m member) leave(t *testing.T) {
	t.Helper()
	m.stop()
	if err := <-m.ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}

func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatal("never happened: " + what)
		case <-tick.C:
		}
	}
}

// taken is how many heartbeats m has taken from others.
func (m member) taken(t *testing.T) uint64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.Members)
	families, err := registry.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == "holdfast_heartbeat_received_total" {
			return uint64(f.GetMetric()[0].GetCounter().GetValue())
		}
	}
	t.Fatal("heartbeats are not counted")
	return 0
}

// hears waits until m has heard some more heartbeats, and what other sends by gossip.
func (m member) hears(t *testing.T, other member) {
	t.Helper()
	before := m.taken(t)
	eventually(t, "heartbeats are heard", func() bool { return m.taken(t) >= before+10 })
	sent := lb.Member{Links: []lb.Link{{Name: strconv.FormatUint(before, 10), MAC: [6]byte{2, 0, 0, 0, 0, 1}}}}
	other.SetSelf(sent)
	eventually(t, "gossip is heard", func() bool {
		links := m.Metadata()[other.config.NodeName].Links
		return len(links) == 1 && links[0].Name == sent.Links[0].Name
	})
}

func (m member) sees(names ...string) func() bool {
	return func() bool { return slices.Equal(slices.Sorted(maps.Keys(m.View().Alive)), names) }
}

// Trap: only a part of the key counts, so that another key is accepted too (MetalLB #3102).
func TestMembers(t *testing.T) {
	port, key := freePort(t), bytes.Repeat([]byte{7}, 32)
	other := bytes.Clone(key)
	other[31]++
	a := start(t, port, "127.0.0.1", "a", key)
	b := start(t, port, "127.0.0.2", "b", key, "a=127.0.0.1")
	c := start(t, port, "127.0.0.3", "c", key, "a=127.0.0.1", "n=127.0.0.9") // the last address has no member
	outsider := start(t, port, "127.0.0.4", "s", other, "a=127.0.0.1")

	for _, m := range []member{a, b, c} {
		eventually(t, "three members see each other", m.sees("a", "b", "c"))
	}
	eventually(t, "c has tried all addresses, the empty one too", c.Joined)
	b.leave(t)
	for _, m := range []member{a, c} {
		eventually(t, "b's goodbye is heard", m.sees("a", "c"))
	}
	eventually(t, "a member with another key stays alone", outsider.sees("s"))
}

func TestWrongKey(t *testing.T) {
	for _, keys := range [][][]byte{{[]byte("short")}, {bytes.Repeat([]byte{1}, 32), []byte("short")}} {
		c := heartbeat.Config{Log: slog.New(slog.DiscardHandler), NodeName: "a", Keys: keys, Changed: func() {}}
		if _, err := New(Config{Config: c}); err == nil ||
			!strings.Contains(err.Error(), "key") {
			t.Errorf("New with the keys %q: %v", keys, err)
		}
	}
}

// Keys are rotated in three steps, at one member after the other, and no member is
// missed meanwhile. A member with only the old key is not heard afterwards.
func TestRotation(t *testing.T) {
	port, old, next := freePort(t), bytes.Repeat([]byte{7}, 32), bytes.Repeat([]byte{9}, 32)
	a := start(t, port, "127.0.0.1", "a", old)
	b := start(t, port, "127.0.0.2", "b", old, "a=127.0.0.1")
	seen := func() bool { return a.sees("a", "b")() && b.sees("a", "b")() }
	eventually(t, "both see each other", seen)
	for _, keys := range [][][]byte{{old, next}, {next, old}, {next}} {
		for _, m := range []member{a, b} {
			must(t, m.SetKeys(keys))
			a.hears(t, b)
			b.hears(t, a)
			if !seen() {
				t.Errorf("no more seen while keys are rotated: %v, %v", a.View().Alive, b.View().Alive)
			}
		}
	}
	if err := a.SetKeys([][]byte{[]byte("short")}); err == nil {
		t.Error("a short key is taken")
	}
	outsider := start(t, port, "127.0.0.3", "s", old, "a=127.0.0.1")
	eventually(t, "a member with the old key has tried all addresses", func() bool {
		return outsider.Joined() && outsider.sees("s")()
	})
	a.hears(t, b)
	b.hears(t, a)
	if !seen() || !outsider.sees("s")() {
		t.Errorf("the old key still opens doors: %v, %v, %v", a.View().Alive, b.View().Alive, outsider.View().Alive)
	}
}

// SetKeys removes every key that is not among the new ones: it would still be accepted.
func TestKeysReplaced(t *testing.T) {
	keys := func(firsts ...byte) (all [][]byte) {
		for _, first := range firsts {
			all = append(all, bytes.Repeat([]byte{first}, 32))
		}
		return all
	}
	m, err := New(Config{Config: heartbeat.Config{
		Log: slog.New(slog.DiscardHandler), NodeName: "a", Address: netip.MustParseAddr("127.0.0.1"), Keys: keys(1, 2, 3, 4),
	}})
	must(t, err)
	for _, want := range [][][]byte{keys(1, 4), keys(5, 6, 7), keys(7)} {
		must(t, m.SetKeys(want))
		if got := m.keyring.GetKeys(); !bytes.Equal(bytes.Join(got, nil), bytes.Join(want, nil)) {
			t.Errorf("keys are %v, want %v", got, want)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testMember(links int) lb.Member {
	m := lb.Member{Stopping: true}
	for i := range links {
		m.Links = append(m.Links, lb.Link{
			Name: fmt.Sprint("eth", i), MAC: [6]byte{2, 0, 0, 0, 0, byte(i)}, Default: i%2 == 0,
			Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.64/26"), netip.MustParsePrefix("2001:db8::/49"),
				netip.MustParsePrefix("0.0.0.0/0")},
		})
	}
	return m
}

func TestMeta(t *testing.T) {
	const sessionless = lb.SessionlessIPv4 | lb.SessionlessIPv6
	unfit := testMember(3)
	unfit.Unfit, unfit.Links[1].Refused = lb.Booting|lb.Unfiltered|sessionless, true
	for _, m := range []lb.Member{{}, {Partial: true}, {Unfit: lb.Booting}, {Unfit: lb.RulesGone},
		{Unfit: lb.PodsUnreached}, {Unfit: lb.Unfiltered},
		{Unfit: sessionless}, {Unfit: lb.SessionlessIPv4}, {Unfit: lb.SessionlessIPv6}, testMember(1), testMember(8), unfit} {
		got, err := decodeMember(encodeMember(m, memberlist.MetaMaxSize))
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%+v became %+v, %v", m, got, err)
		}
	}
	// Links that do not fit are left out, and the metadata reports that.
	many := testMember(300)
	b := encodeMember(many, memberlist.MetaMaxSize)
	got, err := decodeMember(b)
	if err != nil || len(b) > memberlist.MetaMaxSize || !got.Partial || len(got.Links) < 10 ||
		!reflect.DeepEqual(got.Links, many.Links[:len(got.Links)]) {
		t.Errorf("%d octets became %+v, %v", len(b), got, err)
	}
	for i := range len(b) - len(got.Links) - 1 {
		if _, err := decodeMember(b[:i]); err == nil {
			t.Errorf("the first %d octets of %d are read", i, len(b))
		}
	}
}

// Addresses of links and the state of the API server come where an older writer stops, and addresses give way to
// links.
func TestMetaAddresses(t *testing.T) {
	m := testMember(3)
	without := encodeMember(m, memberlist.MetaMaxSize)
	without = without[:len(without)-len(m.Links)-1]
	if got, err := decodeMember(without); err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("of an older writer: %+v, %v", got, err)
	}
	m.Links[0].Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.65"), netip.MustParseAddr("fe80::1")}
	m.Links[2].Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.66")}
	with := encodeMember(m, memberlist.MetaMaxSize)
	if !bytes.HasPrefix(with, without) {
		t.Errorf("%x does not begin with %x", with, without)
	}
	if got, err := decodeMember(with); err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("%+v became %+v, %v", m, got, err)
	}
	for i := len(without) + 1; i < len(with)-1; i++ {
		got, err := decodeMember(with[:i])
		if err == nil && len(got.Links[2].Addresses) > 0 {
			t.Errorf("of %d octets %d are read as %+v", len(with), i, got)
		}
	}
	got, err := decodeMember(encodeMember(m, len(with)-1))
	if want := m.Links[0].Addresses; err != nil || got.Partial || len(got.Links) != 3 ||
		!reflect.DeepEqual(got.Links[0].Addresses, want) ||
		got.Links[2].Addresses != nil {
		t.Errorf("in little room: %+v, %v", got, err)
	}
}

// The state of the API server always has room.
func TestMetaAPI(t *testing.T) {
	addressed := testMember(3)
	addressed.Links[1].Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.65"), netip.MustParseAddr("fe80::1")}
	for _, m := range []lb.Member{{}, testMember(1), addressed, testMember(300)} {
		for _, api := range []lb.API{lb.APIHeard, lb.APIAway, lb.APIBehind} {
			m.API = api
			for _, limit := range []int{memberlist.MetaMaxSize, memberlist.MetaMaxSize - 1, 200, 100, 4} {
				b := encodeMember(m, limit)
				got, err := decodeMember(b)
				if err != nil || len(b) > limit || got.API != api ||
					len(m.Links) <= 3 && limit > 200 && !reflect.DeepEqual(got, m) {
					t.Errorf("%d octets of %d became %+v, %v", len(b), limit, got, err)
				}
			}
		}
	}
	if got, err := decodeMember([]byte{metaVersion, 0, 0, 99}); err != nil || got.API != lb.APIUnknown {
		t.Errorf("what a later speaker says is read as %+v, %v", got, err)
	}
}

// An older reader ignores flags that it does not know, and finds the rest at the same place.
func TestMetaFlags(t *testing.T) {
	m := testMember(2)
	before := encodeMember(m, memberlist.MetaMaxSize)
	m.Unfit, m.Links[0].Refused = lb.Booting|lb.Unfiltered, true
	after := encodeMember(m, memberlist.MetaMaxSize)
	if len(after) != len(before) {
		t.Fatalf("%d octets became %d", len(before), len(after))
	}
	after[1] &= flagStopping | flagPartial
	after[3] &= 1 // the default route
	if !bytes.Equal(before, after) {
		t.Errorf("%x became %x", before, after)
	}
}

func FuzzMeta(f *testing.F) {
	f.Add(encodeMember(testMember(3), memberlist.MetaMaxSize))
	addressed := testMember(3)
	addressed.Links[1].Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.65"), netip.MustParseAddr("fe80::1")}
	f.Add(encodeMember(addressed, memberlist.MetaMaxSize))
	addressed.Unfit, addressed.Links[2].Refused, addressed.API = lb.Booting|lb.Unfiltered, true, lb.APIAway
	f.Add(encodeMember(addressed, memberlist.MetaMaxSize))
	f.Add([]byte{metaVersion, 0, 1, 0, 2, 0, 0, 0, 0, 1, 1, 'e', 1, 16, 129})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMember(b)
		if err != nil {
			return
		}
		again, err := decodeMember(encodeMember(m, 1<<20))
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Errorf("%+v became %+v, %v", m, again, err)
		}
	})
}

// The metadata of a member reaches the others, at once when it changes, and
// is kept after its death.
func TestMetadata(t *testing.T) {
	port, key := freePort(t), bytes.Repeat([]byte{7}, 32)
	a := start(t, port, "127.0.0.1", "a", key)
	b := start(t, port, "127.0.0.2", "b", key, "a=127.0.0.1")
	hears := func(m member, of string, want lb.Member) func() bool {
		return func() bool { got, ok := m.Metadata()[of]; return ok && reflect.DeepEqual(got, want) }
	}
	eventually(t, "members see each other", a.sees("a", "b"))
	if _, known := a.Metadata()["b"]; known {
		t.Error("b has metadata before SetSelf")
	}
	first := testMember(2)
	b.SetSelf(first)
	eventually(t, "a hears what b tells", hears(a, "b", first))
	second := testMember(1)
	b.SetSelf(second)
	eventually(t, "a hears what changed", hears(a, "b", second))
	b.leave(t)
	eventually(t, "b is gone", a.sees("a"))
	if !hears(a, "b", second)() {
		t.Error("the metadata of the dead is forgotten")
	}
}

// The metadata of a member is removed when its speaker has been gone from the cluster for a while. Its death and a new
// pod do not count as that.
func TestForgetUnknown(t *testing.T) {
	m := silent(t, nil)
	delete(m.addresses, "b")
	b := &memberlist.Node{
		Name: "b", Addr: net.IPv4(127, 0, 0, 2), Meta: encodeMember(testMember(1), memberlist.MetaMaxSize),
	}
	none, both := map[string]netip.Addr{}, map[string]netip.Addr{"b": netip.MustParseAddr("127.0.0.2")}
	at := time.Now()
	for _, step := range []struct {
		name    string
		act     func()
		after   time.Duration
		forgets bool
	}{
		{"it lives, and no speaker is known yet", func() { m.recordMember(b) }, time.Hour, false},
		{"it lives on", func() {}, time.Hour, false},
		{"it dies", func() { m.SetSpeakers(both); memberEvents{m}.NotifyLeave(b) }, time.Hour, false},
		{"it is dead for long", func() {}, time.Hour, false},
		{"its pod is gone for less than the time", func() { m.SetSpeakers(none) }, metadataLifetime - 1, false},
		{"there is a new one", func() { m.SetSpeakers(both) }, time.Hour, false},
		{"that is gone too, for the time", func() { m.SetSpeakers(none) }, metadataLifetime, true},
	} {
		at = at.Add(step.after)
		step.act()
		if got := m.pruneMetadata(at); got != step.forgets {
			t.Errorf("%s: forgets %t", step.name, got)
		}
		if _, known := m.Metadata()["b"]; known == step.forgets {
			t.Errorf("%s: its metadata is known: %t", step.name, known)
		}
	}
	m.recordMember(b)
	if _, known := m.Metadata()["b"]; !known {
		t.Error("it is back, and not heard")
	}
}

// A running member removes old metadata by itself.
func TestForgetsUnknown(t *testing.T) {
	a := start(t, freePort(t), "127.0.0.1", "a", bytes.Repeat([]byte{7}, 32))
	a.mu.Lock()
	a.metadata["b"] = metadata{testMember(1), time.Now().Add(-metadataLifetime)}
	a.mu.Unlock()
	eventually(t, "b is forgotten", func() bool { return len(a.Metadata()) == 0 })
	a.leave(t)
}

// The namespaces without a proxy arrive, however many links there are. Metadata that is cut short is refused.
func TestMetaProxies(t *testing.T) {
	for _, m := range []lb.Member{{}, testMember(3), testMember(300)} {
		m.LacksProxy = []uint32{1, 0x80000000, lb.NamespaceHash("shop")}
		b := encodeMember(m, memberlist.MetaMaxSize)
		got, err := decodeMember(b)
		if err != nil || len(b) > memberlist.MetaMaxSize || !slices.Equal(got.LacksProxy, m.LacksProxy) {
			t.Errorf("%d octets became %+v, %v", len(b), got, err)
		}
		if _, err := decodeMember(b[:len(b)-1]); err == nil {
			t.Error("an octet less is read")
		}
	}
}
