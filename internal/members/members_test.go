package members

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/prometheus/client_golang/prometheus"
)

// heartbeats has the test program be a heartbeat process.
var heartbeats = []string{os.Args[0], "heartbeats"}

func TestMain(m *testing.M) {
	if slices.Equal(os.Args, heartbeats) {
		if heartbeat.Serve(nil) != nil {
			os.Exit(1) // at once, as the real one
		}
		return
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // with the race detector, a process would outlast its time to leave
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
	return startOwner(t, nil, port, address, name, key, join...)
}

func startOwner(t *testing.T, owner Owner, port uint16, address, name string, key []byte, join ...string) member {
	t.Helper()
	m, err := New(Config{Owner: owner, GossipPort: port, Admit: (&daemon.Crowd{All: 64, OfOne: 64}).Admit, JoinInterval: 20 * time.Millisecond,
		Config: heartbeat.Config{
			Log: slog.New(slog.DiscardHandler), NodeName: name, Address: netip.MustParseAddr(address),
			Port: port + 1, Keys: [][]byte{key}, Changed: func() {},
			// On a busy machine a process may not run for a while, and is not dead.
			Timers: heartbeat.Timers{Multiplier: 200}, Command: heartbeats, Ordinary: true,
		}})
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
	registry.MustRegister(m.Members.heartbeats)
	families, err := registry.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == "holdfast_heartbeat_gap_seconds" {
			return f.GetMetric()[0].GetHistogram().GetSampleCount()
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

// Trap: a key of which not all counts, so that another one opens too (MetalLB #3102).
func TestMembers(t *testing.T) {
	port, key := freePort(t), bytes.Repeat([]byte{7}, 32)
	other := bytes.Clone(key)
	other[31]++
	a := start(t, port, "127.0.0.1", "a", key)
	b := start(t, port, "127.0.0.2", "b", key, "a=127.0.0.1")
	c := start(t, port, "127.0.0.3", "c", key, "a=127.0.0.1", "n=127.0.0.9") // the last is nobody
	outsider := start(t, port, "127.0.0.4", "s", other, "a=127.0.0.1")

	for _, m := range []member{a, b, c} {
		eventually(t, "three members see each other", m.sees("a", "b", "c"))
	}
	eventually(t, "c has tried everybody, the nobody too", c.Joined)
	b.stop()
	if err := <-b.ended; err != nil {
		t.Errorf("Run of b: %v", err)
	}
	for _, m := range []member{a, c} {
		eventually(t, "b's goodbye is heard", m.sees("a", "c"))
	}
	eventually(t, "a member with another key stays alone", outsider.sees("s"))
}

func TestWrongKey(t *testing.T) {
	for _, keys := range [][][]byte{nil, {[]byte("short")}, {bytes.Repeat([]byte{1}, 32), []byte("short")}} {
		c := heartbeat.Config{Log: slog.New(slog.DiscardHandler), NodeName: "a", Keys: keys, Changed: func() {}}
		if _, err := New(Config{Config: c}); err == nil ||
			!strings.Contains(err.Error(), "key") {
			t.Errorf("New with the keys %q: %v", keys, err)
		}
	}
}

// Keys are rotated in three steps, at one member after the other, and nobody is
// missed meanwhile; a member with only the old key is not heard afterwards.
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
	eventually(t, "a member with the old key has tried everybody", func() bool { return outsider.Joined() && outsider.sees("s")() })
	a.hears(t, b)
	b.hears(t, a)
	if !seen() || !outsider.sees("s")() {
		t.Errorf("the old key still opens doors: %v, %v, %v", a.View().Alive, b.View().Alive, outsider.View().Alive)
	}
}

// Of many keys none is left that is not among the new ones: it would still open doors.
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
		if got := m.keys.GetKeys(); !bytes.Equal(bytes.Join(got, nil), bytes.Join(want, nil)) {
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
