package heartbeat

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const ms = time.Millisecond

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const (
	// speakerEnv makes TestProcess a speaker of this name.
	speakerEnv = "HOLDFAST_HEARTBEAT_SPEAKER"
	testPort   = 7948
	// within is for how long tests wait on a machine that has much else to do.
	within = 30 * time.Second
)

var (
	testKey = []byte("0123456789abcdef0123456789abcdef")
	// testCommand starts a heartbeat process if speakerEnv is set.
	testCommand = []string{os.Args[0], "-test.run=^TestServe$"}
)

// line is what a speaker of the test prints when something changes.
type line struct {
	// At is CLOCK_BOOTTIME.
	At   time.Duration
	View detect.View
	// Woke: the process did not run for a while; Valid is what the Lease said in the first moment after it.
	Woke  bool
	Valid bool
	// Latest is how late its latest heartbeat was.
	Latest time.Duration
	// Child is its heartbeat process.
	Child int
	// Overruns and Restarts are the metrics.
	Overruns, Restarts uint64
}

// TestProcess is the other processes of tests, not a test.
func TestProcess(t *testing.T) {
	arguments := strings.Fields(os.Getenv(speakerEnv))
	if len(arguments) == 0 {
		t.Skip("started by other tests only")
	}
	multiplier, err := strconv.Atoi(arguments[1])
	must(t, err)
	speak(t, arguments[0], multiplier, arguments[2:])
}

// TestServe is the heartbeat process of a speaker, not a test.
func TestServe(t *testing.T) {
	if os.Getenv(speakerEnv) == "" {
		t.Skip("started by speakers only")
	}
	if at := os.Getenv(faultEnv); at != "" {
		go awaitFaults(at)
	}
	if Serve(func(net.Conn, func() bool) {}) != nil {
		os.Exit(1) // at once, as the real one
	}
}

// speak is a speaker; peers are of the form name=address, and its own is among them.
func speak(t *testing.T, name string, multiplier int, peers []string) {
	var all []Peer
	var own netip.Addr
	for _, p := range peers {
		peer, address, _ := strings.Cut(p, "=")
		a := netip.MustParseAddr(address)
		all = append(all, Peer{Name: peer, Address: a, Gossip: true})
		if peer == name {
			own = a
		}
	}
	lines := make(chan line, 1024)
	var h *Heartbeat
	changed := func() {
		l := line{At: boottime(), View: h.View().View, Valid: h.Valid(), Latest: time.Duration(h.shared.latest.Load())}
		l.Child, _ = h.Process() // 0 before it runs
		l.Overruns, l.Restarts = h.shared.overruns.Load(), h.shared.restarts.Load()
		lines <- l
	}
	h, err := New(Config{
		Log:      slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		NodeName: name, Address: own, Port: testPort, Keys: [][]byte{testKey},
		Timers:  detect.Timers{Multiplier: multiplier},
		Command: testCommand, Stderr: os.Stderr,
		Changed: func() { changed(); h.Confirm(h.View()) },
		Ask: func(string) detect.WireAnswer {
			return detect.WireAnswer{Node: detect.Unanswered, Foreign: detect.Answered}
		},
		Guest: func(net.Conn) {},
	})
	must(t, err)
	h.Set(all)
	h.SetLinks(append(nodePathLinks(), otherLinks()...))
	go func() {
		for l := range lines {
			b, err := json.Marshal(l)
			if err != nil {
				panic(err)
			}
			fmt.Printf("\n@%s\n", b)
		}
	}()
	go func() {
		// What a responder would do first after the process ran again.
		runtime.LockOSThread()
		last := boottime()
		for range time.Tick(100 * time.Microsecond) {
			at := boottime()
			valid := h.Valid()
			if at-last > time.Second {
				lines <- line{At: at, Woke: true, Valid: valid, View: h.View().View}
			}
			last = at
		}
	}()
	must(t, h.Run(t.Context()))
}

// otherLinks returns the links beside the first one.
func otherLinks() (links []Link) {
	for {
		l, err := net.InterfaceByName(fmt.Sprintf("eth%d", len(links)+1))
		if err != nil {
			return links
		}
		links = append(links, Link{
			Name: l.Name, Index: l.Index, MAC: macAddress(l.HardwareAddr), Fast: len(links) == 0,
		})
	}
}

// nodePathEnv has a speaker send frames on the link of its address.
const nodePathEnv = "HOLDFAST_HEARTBEAT_NODE_PATH"

// nodePathLinks returns the link of the speaker's address.
func nodePathLinks() (links []Link) {
	l, err := net.InterfaceByName("eth0")
	if err != nil || os.Getenv(nodePathEnv) == "" {
		return nil
	}
	return []Link{{Name: l.Name, Index: l.Index, MAC: macAddress(l.HardwareAddr), NodePath: true}}
}

// speaker is one such process, in a namespace of its own.
type speaker struct {
	name  string
	ns    *nstest.NS
	lan   *nstest.NS
	cmd   *exec.Cmd
	lines chan line
	last  line
	// env is added to its environment, and what it logs goes to log, if that is not nil.
	env []string
	log io.Writer
	// links is how many more links all nodes have, without addresses.
	links int
	// verdict has the firewall of the first node drop or reject heartbeats, and all speakers send frames on the link of
	// their address.
	verdict string
}

// cluster starts n speakers on one LAN; multipliers belong to the first speakers.
func cluster(t testing.TB, n int, address string, multipliers ...int) []*speaker {
	t.Helper()
	return clusterWith(t, speaker{}, n, address, multipliers...)
}

// clusterWith starts the first one with an environment and a log, and gives all as many links.
func clusterWith(t testing.TB, first speaker, n int, address string, multipliers ...int) []*speaker {
	t.Helper()
	lan := nstest.New(t)
	for link := range first.links + 1 {
		lan.Bridge(fmt.Sprintf("br%d", link))
	}
	var peers []string
	for i := range n {
		peers = append(peers, fmt.Sprintf("node%d=%s", i, fmt.Sprintf(address, i+1)))
	}
	var speakers []*speaker
	for i := range n {
		s := &speaker{name: fmt.Sprintf("node%d", i), ns: nstest.New(t), lan: lan}
		if i == 0 {
			s.env, s.log = first.env, first.log
		}
		port := fmt.Sprintf("p%d", i)
		nstest.Veth(t, lan, port, s.ns, "eth0")
		lan.Enslave(port, "br0")
		for link := 1; link <= first.links; link++ {
			port := fmt.Sprintf("p%d.%d", i, link)
			nstest.Veth(t, lan, port, s.ns, fmt.Sprintf("eth%d", link))
			lan.Enslave(port, fmt.Sprintf("br%d", link))
		}
		bits := "/24"
		if strings.Contains(address, ":") {
			bits = "/64"
		}
		s.ns.AddAddress("eth0", fmt.Sprintf(address, i+1)+bits)
		if first.verdict != "" {
			s.env = append(s.env, nodePathEnv+"=1")
		}
		if i == 0 && first.verdict != "" {
			s.ns.Output("nft", "add table inet wall; add chain inet wall in { type filter hook input priority 0; }; "+
				fmt.Sprintf("add rule inet wall in udp dport %d %s", testPort, first.verdict))
		}
		multiplier := 0
		if i < len(multipliers) {
			multiplier = multipliers[i]
		}
		s.start(t, multiplier, peers)
		speakers = append(speakers, s)
	}
	return speakers
}

func (s *speaker) start(t testing.TB, multiplier int, peers []string) {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	s.cmd = s.ns.Command(exe, "-test.run=^TestProcess$", "-test.v")
	s.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", speakerEnv, s.name, multiplier, strings.Join(peers, " ")))
	s.cmd.Env = append(s.cmd.Env, s.env...)
	s.cmd.Stderr = os.Stderr
	if s.log != nil {
		s.cmd.Stderr = s.log
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with its heartbeat process
	out, err := s.cmd.StdoutPipe()
	must(t, err)
	must(t, s.cmd.Start())
	s.lines = make(chan line, 1024)
	go func(lines chan<- line) {
		defer close(lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			text, marked := strings.CutPrefix(scan.Text(), "@")
			var l line
			if marked && json.Unmarshal([]byte(text), &l) == nil {
				lines <- l
			}
		}
	}(s.lines)
	t.Cleanup(func() { _ = s.cmd.Process.Kill(); _ = s.cmd.Wait() })
}

// await reads what the speaker prints until a line satisfies ok, and returns it.
func (s *speaker) await(t testing.TB, what string, ok func(line) bool) line {
	t.Helper()
	deadline := time.After(within)
	for !ok(s.last) {
		select {
		case l, open := <-s.lines:
			if !open {
				t.Fatalf("%s ended before: %s", s.name, what)
			}
			s.last = l
		case <-deadline:
			t.Fatalf("%s: never: %s; last was %+v", s.name, what, s.last)
		}
	}
	return s.last
}

// sees is an ok for await.
func sees(of *speaker, status detect.Status) func(line) bool {
	return func(l line) bool {
		for _, m := range l.View.Members {
			if m.Name == of.name {
				return m.Status == status && (status != detect.Alive || m.Heard)
			}
		}
		return false
	}
}

// signal sends a signal to the process of the speaker alone.
func (s *speaker) signal(t testing.TB, sig syscall.Signal) time.Duration {
	t.Helper()
	at := boottime()
	must(t, s.cmd.Process.Signal(sig))
	return at
}

// signalAll sends it to its heartbeat process, too.
func (s *speaker) signalAll(t testing.TB, sig syscall.Signal) time.Duration {
	t.Helper()
	at := boottime()
	must(t, syscall.Kill(-s.cmd.Process.Pid, sig))
	return at
}

// That the process ended comes after all that its guest reported.
func TestGuestGone(t *testing.T) {
	var last []byte
	h, err := New(Config{
		Log: slog.New(slog.DiscardHandler), NodeName: "node", Keys: [][]byte{make([]byte, 32)},
		Command: []string{"sh", "-c", `printf 'last words' >&5`},
		Guest:   func(conn net.Conn) { last, _ = io.ReadAll(conn) },
	})
	must(t, err)
	if err := h.runProcess(t.Context(), 0); !errors.Is(err, errEnded) {
		t.Fatal(err)
	}
	if string(last) != "last words" {
		t.Errorf("the guest's last words were %q", last)
	}
}
