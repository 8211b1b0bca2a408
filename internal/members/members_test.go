package members

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// member is one Members on an address of the loopback.
type member struct {
	*Members
	stop  func()
	ended chan error
}

func start(t *testing.T, port uint16, address, name string, key []byte, join ...string) member {
	t.Helper()
	m, err := New(Config{
		Log: slog.New(slog.DiscardHandler), NodeName: name, Address: netip.MustParseAddr(address),
		Port: port, HeartbeatPort: port + 1, Keys: [][]byte{key}, Kick: func() {}, JoinInterval: 20 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
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

// stays looks for as long as a death would take to be noticed.
func stays(t *testing.T, what string, ok func() bool) {
	t.Helper()
	end := time.After(500 * time.Millisecond)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if !ok() {
			t.Fatal("no more: " + what)
		}
		select {
		case <-end:
			return
		case <-tick.C:
		}
	}
}

func (m member) sees(names ...string) func() bool {
	return func() bool { return slices.Equal(slices.Sorted(maps.Keys(m.Alive())), names) }
}

func TestMembers(t *testing.T) {
	port, key := freePort(t), bytes.Repeat([]byte{7}, 32)
	a := start(t, port, "127.0.0.1", "a", key)
	b := start(t, port, "127.0.0.2", "b", key, "a=127.0.0.1")
	c := start(t, port, "127.0.0.3", "c", key, "a=127.0.0.1", "n=127.0.0.9") // the last is nobody
	stranger := start(t, port, "127.0.0.4", "s", bytes.Repeat([]byte{8}, 32), "a=127.0.0.1")

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
	eventually(t, "a member with another key stays alone", stranger.sees("s"))
}

func TestWrongKey(t *testing.T) {
	for _, keys := range [][][]byte{nil, {[]byte("short")}, {bytes.Repeat([]byte{1}, 32), []byte("short")}} {
		if _, err := New(Config{Log: slog.New(slog.DiscardHandler), NodeName: "a", Keys: keys, Kick: func() {}}); err == nil || !strings.Contains(err.Error(), "key") {
			t.Errorf("New with the keys %q: %v", keys, err)
		}
	}
}

// Keys are rotated in three steps, at one member after the other, and nobody is
// missed meanwhile; who has only the old key is not heard afterwards.
func TestRotation(t *testing.T) {
	port, old, next := freePort(t), bytes.Repeat([]byte{7}, 32), bytes.Repeat([]byte{9}, 32)
	a := start(t, port, "127.0.0.1", "a", old)
	b := start(t, port, "127.0.0.2", "b", old, "a=127.0.0.1")
	seen := func() bool { return a.sees("a", "b")() && b.sees("a", "b")() }
	eventually(t, "both see each other", seen)
	for _, keys := range [][][]byte{{old, next}, {next, old}, {next}} {
		for _, m := range []member{a, b} {
			if err := m.SetKeys(keys); err != nil {
				t.Fatal(err)
			}
			stays(t, "both see each other while keys are rotated", seen)
		}
	}
	if err := a.SetKeys([][]byte{[]byte("short")}); err == nil {
		t.Error("a short key is taken")
	}
	stranger := start(t, port, "127.0.0.3", "s", old, "a=127.0.0.1")
	eventually(t, "who has the old key has tried everybody", func() bool { return stranger.Joined() && stranger.sees("s")() })
	if stays(t, "both see each other and no third", seen); !stranger.sees("s")() {
		t.Errorf("the old key still opens doors: %v, %v, %v", a.Alive(), b.Alive(), stranger.Alive())
	}
}
