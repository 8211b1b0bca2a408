package bfd

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/prometheus/client_golang/prometheus/testutil"
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
	// leave ends the speaker in good order.
	leave func()
	// lost counts how often nothing was known of the sessions.
	lost atomic.Int64
}

// startSpeaker starts a speaker's process of heartbeats and BFD; behind a command, if there is one.
func startSpeaker(t testing.TB, address string, behind ...string) *speaker {
	t.Helper()
	t.Setenv(processEnv, "1")
	s := &speaker{node: &node{t: t}}
	s.Monitor = New(Config{Log: slog.New(slog.DiscardHandler), Changed: func() {
		if len(s.Statuses()) == 0 {
			s.lost.Add(1)
		}
	}})
	exe, err := os.Executable()
	must(t, err)
	// Without a /proc of its own PID namespace the process does not get real-time priority.
	command := []string{
		"unshare", "--mount", "--propagation", "private", "sh", "-c", `mount -t proc proc /proc && exec "$0" "$@"`,
	}
	command = append(append(command, behind...), exe, "-test.run=^TestServe$")
	s.heartbeats, err = heartbeat.New(heartbeat.Config{
		Log: slog.New(slog.DiscardHandler), NodeName: "node", Address: netip.MustParseAddr(address), Port: 7948,
		Keys: [][]byte{[]byte("0123456789abcdef0123456789abcdef")}, Command: command,
		Changed: func() {}, Guest: s.Serve,
	})
	must(t, err)
	s.leave = nstest.Running(t, s.heartbeats.Run)
	return s
}

func (s *speaker) signal(sig syscall.Signal) {
	s.t.Helper()
	pid, err := s.heartbeats.Process()
	if err == nil {
		err = syscall.Kill(pid, sig)
	}
	must(s.t, err)
}

// TestProcess: a speaker's sessions live in the heartbeat process: a frozen process makes them fall, an ended process
// is started again with its sessions, and an ordered end is announced, so that the router takes it for no failure.
func TestProcess(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		_, ns, _ := connect(t)
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

// TestSpeakerHangs: while the speaker hangs it does not serve, and routers should know.
func TestSpeakerHangs(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		_, ns, _ := connect(t)
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

// TestMonitorOrders: the process gets what is wanted when it is reached, and when that changes, and not more often.
func TestMonitorOrders(t *testing.T) {
	ours, theirs := net.Pipe()
	m := New(Config{Log: slog.New(slog.DiscardHandler), Changed: func() {}})
	m.Set([]Peer{good()})
	go m.Serve(ours)
	in := json.NewDecoder(theirs)
	ordered := func(want ...Peer) {
		t.Helper()
		var got []Peer
		if err := in.Decode(&got); err != nil || len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Errorf("the order has %+v, %v; want %+v", got, err, want)
		}
	}
	ordered(good())
	other := good()
	other.Name, other.Address = "b", netip.MustParseAddr("2001:db8::1")
	go func() { // each waits until the one before is read
		m.Set([]Peer{good()})
		m.Set([]Peer{good(), other})
		m.Set(nil)
		theirs.Close()
	}()
	ordered(good(), other)
	ordered()
}

// TestMonitorNotices: changes are passed on, counters are not; the end of the process is a change, after which nothing
// is known.
func TestMonitorNotices(t *testing.T) {
	changes := 0
	m := New(Config{Log: slog.New(slog.DiscardHandler), Changed: func() { changes++ }})
	tell := func(s ...Status) {
		t.Helper()
		m.receive(s)
	}
	s := Status{Name: "a", State: Down, Remote: Down}
	tell(s)
	for i, step := range []struct {
		change func()
		want   int
	}{
		{func() { s.State, s.Remote, s.Ups = Up, Up, 1 }, 2},
		{func() { s.Sent, s.Received = 10, 10 }, 2},
		{func() { s.Failures, s.Ups = 1, 2 }, 3}, // it fell and came up between two reports
		{func() { s.Remote = AdminDown }, 4},
		{func() { s.SwitchedOff = true }, 5}, // in between
		{func() { s.Error = "trouble" }, 6},
	} {
		step.change()
		if tell(s); changes != step.want {
			t.Errorf("step %d: %d changes, want %d", i, changes, step.want)
		}
	}
	s.Error = ""
	tell(s)
	const want = `
# HELP holdfast_bfd_failures_total Times that the BFD session fell; not counted if one of both sides was switched off.
# TYPE holdfast_bfd_failures_total counter
holdfast_bfd_failures_total{peer="a"} 1
# HELP holdfast_bfd_session_up 1 if the BFD session is up.
# TYPE holdfast_bfd_session_up gauge
holdfast_bfd_session_up{peer="a"} 1
`
	if err := testutil.CollectAndCompare(m, strings.NewReader(want), "holdfast_bfd_failures_total",
		"holdfast_bfd_session_up"); err != nil {
		t.Error(err)
	}
	before := changes
	m.receive(nil)
	if all := m.Statuses(); len(all) > 0 || changes != before+1 {
		t.Errorf("after the end of the process: %+v, %d changes", all, changes-before)
	}
	if n := testutil.CollectAndCount(m); n != 0 {
		t.Errorf("%d metrics of sessions of which nothing is known", n)
	}
}
