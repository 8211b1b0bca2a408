package members

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/heartbeat"
)

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
	m, err := New(Config{GossipPort: port, Admit: (&daemon.Crowd{All: 64, OfOne: 4}).Admit, Config: heartbeat.Config{
		Log: slog.New(l), NodeName: "n1", Address: netip.MustParseAddr("127.0.0.1"), Port: port + 1,
		Keys: [][]byte{make([]byte, 32)}, Changed: func() {}, Timers: heartbeat.Timers{Multiplier: 200}, Command: heartbeats, Ordinary: true,
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
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

// TestForgedGossipLog: packets of nobody do not fill the log.
func TestForgedGossipLog(t *testing.T) {
	at, l := startLogged(t)
	c, err := net.Dial("udp", at)
	if err != nil {
		t.Fatal(err)
	}
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

// TestForgedGossipStreams: a stranger cannot have this process keep what he sends, however much he sends at once.
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
