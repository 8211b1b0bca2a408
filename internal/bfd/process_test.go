package bfd

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// processEnv makes TestServe the process that a speaker starts.
const processEnv = "HOLDFAST_BFD_PROCESS"

// TestServe is the process of heartbeats and sessions, not a test.
func TestServe(t *testing.T) {
	if os.Getenv(processEnv) == "" {
		t.Skip("started by speakers only")
	}
	if heartbeat.Serve(Serve) != nil {
		os.Exit(1)
	}
}

// speaker has a Monitor whose sessions run in a real heartbeat process.
type speaker struct {
	*node
	heartbeats *heartbeat.Heartbeat
	cancel     context.CancelFunc
	ran        chan error
	// lost counts how often nothing was known of the sessions.
	lost atomic.Int64
}

// startSpeaker starts a speaker's process of heartbeats and BFD; behind a command, if there is one.
func startSpeaker(t testing.TB, address string, behind ...string) *speaker {
	t.Helper()
	t.Setenv(processEnv, "1")
	s := &speaker{node: &node{t: t}, ran: make(chan error, 1)}
	s.Monitor = New(Config{Log: slog.New(slog.DiscardHandler), Changed: func() {
		if len(s.Statuses()) == 0 {
			s.lost.Add(1)
		}
	}})
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Without a /proc of its own PID namespace the process does not get real-time priority.
	command := []string{"unshare", "--mount", "--propagation", "private", "sh", "-c", `mount -t proc proc /proc && exec "$0" "$@"`}
	command = append(append(command, behind...), exe, "-test.run=^TestServe$")
	s.heartbeats, err = heartbeat.New(heartbeat.Config{
		Log: slog.New(slog.DiscardHandler), NodeName: "node", Address: netip.MustParseAddr(address), Port: 7948,
		Keys: [][]byte{[]byte("0123456789abcdef0123456789abcdef")}, Command: command,
		Changed: func() {}, Guest: s.Serve,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.cancel = cancel
	go func() { s.ran <- s.heartbeats.Run(ctx) }()
	t.Cleanup(s.leave)
	return s
}

// leave ends the speaker in good order.
func (s *speaker) leave() {
	if s.ran == nil {
		return
	}
	s.cancel()
	if err := <-s.ran; err != nil {
		s.t.Errorf("the heartbeats ended: %v", err)
	}
	s.ran = nil
}

func (s *speaker) signal(sig syscall.Signal) {
	s.t.Helper()
	pid, err := s.heartbeats.Process()
	if err == nil {
		err = syscall.Kill(pid, sig)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// A speaker's sessions live in the heartbeat process: a frozen one falls, one that ends is started again with its
// sessions, and an ordered end is announced, so that the router takes it for no failure.
func TestProcess(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		connect(t, self, ns, nstest.New(t))
		f := startFRR(t, ns, frrConfig)
		s := startSpeaker(t, "192.0.2.1")
		s.Set(only("v4"))
		up := func() {
			t.Helper()
			s.until("the session is up", func() bool { return s.status("v4").State == Up && f.up("192.0.2.1") })
		}
		up()
		s.until("the intervals are negotiated", func() bool {
			return f.peer("192.0.2.1").RemoteTransmit == 100 && s.status("v4").Detection == routerDetects
		})

		s.signal(syscall.SIGSTOP)
		frozen := time.Now()
		s.until("the router gives up a frozen process", func() bool { return !f.up("192.0.2.1") })
		if p := f.peer("192.0.2.1"); p.Diagnostic != "control detection time expired" {
			t.Errorf("FRR's diagnostic is %q", p.Diagnostic)
		}
		t.Logf("FRR showed it down %v after the process froze", time.Since(frozen))
		s.signal(syscall.SIGCONT)
		up()

		s.signal(syscall.SIGKILL)
		s.until("nothing is known for a moment", func() bool { return s.lost.Load() == 1 })
		up()

		s.leave()
		if all := s.Statuses(); all != nil {
			t.Errorf("after the end something is known: %+v", all)
		}
		s.until("the router sees the session switched off", func() bool {
			p := f.peer("192.0.2.1")
			return p.Status == "down" && p.RemoteDiagnostic == "administratively down"
		})
	})
}

// While the speaker hangs it does not serve, and routers should know.
func TestSpeakerHangs(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		connect(t, self, ns, nstest.New(t))
		f := startFRR(t, ns, frrConfig)
		var hangs atomic.Bool
		n := startNodeThat(t, hangs.Load)
		n.Set(only("v6"))
		up := func() bool { return n.status("v6").State == Up && f.up("2001:db8:1::1") }
		n.until("the session is up", up)
		hangs.Store(true)
		n.until("the router gives the speaker up", func() bool { return !f.up("2001:db8:1::1") })
		hangs.Store(false)
		n.until("the session is up again", func() bool { return n.status("v6").Ups == 2 && up() })
	})
}
