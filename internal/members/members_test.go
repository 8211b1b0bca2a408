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
	m := New(Config{
		Log: slog.New(slog.DiscardHandler), NodeName: name, Address: netip.MustParseAddr(address),
		Port: port, Key: key, Kick: func() {}, JoinInterval: 20 * time.Millisecond,
	})
	var addresses []netip.Addr
	for _, j := range join {
		addresses = append(addresses, netip.MustParseAddr(j))
	}
	m.SetJoin(addresses)
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

func (m member) sees(names ...string) func() bool {
	return func() bool { return slices.Equal(slices.Sorted(maps.Keys(m.Alive())), names) }
}

func TestMembers(t *testing.T) {
	port, key := freePort(t), bytes.Repeat([]byte{7}, 32)
	a := start(t, port, "127.0.0.1", "a", key)
	b := start(t, port, "127.0.0.2", "b", key, "127.0.0.1")
	c := start(t, port, "127.0.0.3", "c", key, "127.0.0.1", "127.0.0.9") // the last is nobody
	stranger := start(t, port, "127.0.0.4", "s", bytes.Repeat([]byte{8}, 32), "127.0.0.1")

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

func TestWrongKeyLength(t *testing.T) {
	m := New(Config{Log: slog.New(slog.DiscardHandler), NodeName: "a", Address: netip.MustParseAddr("127.0.0.1"), Port: freePort(t), Key: []byte("short"), Kick: func() {}})
	if err := m.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "key") {
		t.Errorf("Run with a short key: %v", err)
	}
}
