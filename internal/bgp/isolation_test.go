package bgp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// pidOf returns the process of a peer's engine that has reported; 0 if there is none.
func pidOf(s *Speaker, peer string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listed {
		if l.settings.Name == peer && l.supervisor != nil && l.supervisor.reported.Session.State != "" {
			return l.supervisor.pid
		}
	}
	return 0
}

// strike sends a signal to a peer's engine, which must be another one than before, and returns its process.
func strike(t *testing.T, s *Speaker, peer string, with syscall.Signal, before int) int {
	t.Helper()
	var pid int
	nstest.Until(t, patience, "an engine of "+peer+" runs", func() bool {
		pid = pidOf(s, peer)
		return pid != 0 && pid != before
	})
	must(t, syscall.Kill(pid, with))
	nstest.Until(t, patience, "the engine has died", func() bool { return pidOf(s, peer) != pid })
	return pid
}

// TestInteropIsolation: an engine that dies is started again, and its routes stay in the router. An engine that dies
// again and again does not affect the other sessions. Its peer rests, until it is edited.
func TestInteropIsolation(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		var log book
		s, _ := runWith(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
		names := []string{"frr4", "frr6", "bird4", "bird6"}
		s.Set(desire(l.peers(), l.routes()...))
		l.up(t)
		established(t, s, names...)
		for _, name := range names {
			strike(t, s, name, syscall.SIGKILL, 0)
		}
		for _, name := range names {
			nstest.Until(t, patience, name+" is down", func() bool { return session(s, name).State != lb.Established })
			if why := session(s, name).LastError; !strings.Contains(why, "engine ended: signal: killed") {
				t.Errorf("%s: %q", name, why)
			}
		}
		established(t, s, names...)
		l.kept(t, s, desire(l.peers(), l.routes()...), "other engines")
		l.up(t)

		// The first death was above.
		before, pid := since(s), 0
		for range free {
			established(t, s, "bird4")
			pid = strike(t, s, "bird4", syscall.SIGUSR1, pid)
		}
		const why = "the session failed 4 times in a row; retry in 5s; last error: the BGP engine ended: exit status 2: " +
			"panic: a message " +
			"of death"
		await(t, "the session", why, func() string { return session(s, "bird4").LastError })
		if got := session(s, "bird4"); got.State != "idle" || got.Since.IsZero() || pidOf(s, "bird4") != 0 {
			t.Errorf("the session is %+v", got)
		}
		log.mu.Lock()
		text := log.out.String()
		log.mu.Unlock()
		if n := strings.Count(text, `stderr="panic: a message of death\n\ngoroutine`); n != free {
			t.Errorf("%d stacks in the log, want %d:\n%s", n, free, text)
		}
		delete(before, "bird4")
		after := since(s)
		if delete(after, "bird4"); !maps.Equal(before, after) {
			t.Errorf("sessions up since %v, before %v", after, before)
		}
		if gone := append(l.frrKernel.lost(both4, both6, forFRR), l.birdKernel.lost(both6)...); gone != nil {
			t.Errorf("routes %v of other sessions were lost", gone)
		}
		l.bird4.HoldTime = 12 * time.Second
		s.Set(desire(l.peers(), l.routes()...))
		established(t, s, "bird4")
		l.up(t)
		if got := session(s, "bird4"); got.LastError != "" {
			t.Errorf("the session is %+v", got)
		}
	})
}

// TestEngineHangs: an engine that hangs is ended, however long its router would wait, and started again.
func TestEngineHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 s")
	}
	r, other := newRouter(t, "127.0.0.1", 65001), newRouter(t, "127.0.0.2", 65002)
	s, _ := run(t)
	s.Set(desire([]lb.Peer{r.peer("r", 65000), other.peer("other", 65000)}, route("198.51.100.1/32", "other", "r")))
	established(t, s, "r", "other")
	pid, spared := pidOf(s, "r"), pidOf(s, "other")
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	nstest.Until(t, patience, "it is ended", func() bool {
		return strings.Contains(session(s, "r").LastError, "did not answer for 10s")
	})
	established(t, s, "r")
	if after := pidOf(s, "r"); after == pid || pidOf(s, "other") != spared || r.opened() != 2 || other.opened() != 1 {
		t.Errorf("engine %d was %d; the routers got %d and %d OPENs", after, pid, r.opened(), other.opened())
	}
}

// TestEngineLeavesNothing: engines leave no process, file or thread behind, however they end. A command that does not
// start is no death.
func TestEngineLeavesNothing(t *testing.T) {
	r := newRouter(t, "127.0.0.1", 65001)
	s, stop := run(t)
	peers := []lb.Peer{r.peer("r", 65000)}
	cycle := func() {
		t.Helper()
		s.Set(desire(peers))
		established(t, s, "r")
		strike(t, s, "r", syscall.SIGKILL, 0)
		s.Set(desire(nil))
		nstest.Until(t, patience, "the engine ends", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.byAddress) == 0
		})
		r.drop()
	}
	cycle()
	before := entries(t, "/proc/self/fd")
	for range 3 {
		cycle()
	}
	if after := entries(t, "/proc/self/fd"); after > before {
		t.Errorf("%d open files, %d before", after, before)
	}
	s.Set(desire(peers))
	established(t, s, "r")
	stop()
	if children := childrenOf(t, os.Getpid()); len(children) > 0 {
		t.Errorf("children %v after the end", children)
	}

	broken := New(Config{Log: slog.New(slog.DiscardHandler), Kick: func() {}, Command: []string{"/nonexistent"}})
	go func() { _ = broken.Run(t.Context()) }()
	broken.Set(desire(peers))
	const why = "the session failed 4 times in a row; retry in 5s; last error: cannot start the BGP engine: fork/exec " +
		"/nonexistent: " +
		"no such file or directory"
	await(t, "the session", why, func() string { return session(broken, "r").LastError })
}

func entries(t *testing.T, dir string) int {
	t.Helper()
	all, err := os.ReadDir(dir)
	must(t, err)
	return len(all)
}

// childrenOf returns the processes that a process started and that have not been waited for.
func childrenOf(t *testing.T, pid int) []string {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	must(t, err)
	var out []string
	for _, path := range threads {
		b, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
		out = append(out, strings.Fields(string(b))...)
	}
	return out
}

// startSpeaker starts a speaker's process.
func startSpeaker(t *testing.T, peers []lb.Peer, routes ...lb.Route) *exec.Cmd {
	t.Helper()
	b, err := json.Marshal(orders{peers, routes})
	must(t, err)
	cmd := exec.Command(os.Args[0], speakerArgument)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(b), t.Output()
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// TestSpeakerKilled: a speaker that is killed takes its engines with it, and no router hears a NOTIFICATION.
func TestSpeakerKilled(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprintf("the engine hangs %t", hangs), func(t *testing.T) { killSpeaker(t, hangs) })
	}
}

func killSpeaker(t *testing.T, hangs bool) {
	r := newRouter(t, "127.0.0.1", 65001)
	cmd := startSpeaker(t, []lb.Peer{r.peer("r", 65000)})
	nstest.Until(t, patience, "the session is opened", func() bool { return r.opened() == 1 })
	engines := childrenOf(t, cmd.Process.Pid)
	if len(engines) != 1 {
		t.Fatalf("the speaker has children %v", engines)
	}
	if hangs {
		pid, err := strconv.Atoi(engines[0])
		must(t, errors.Join(err, syscall.Kill(pid, syscall.SIGSTOP)))
	}
	must(t, cmd.Process.Kill())
	nstest.Until(t, patience, "the engine is gone", func() bool {
		state, err := os.ReadFile("/proc/" + engines[0] + "/stat")
		return err != nil || strings.Contains(string(state), ") Z ")
	})
	await(t, "what the router heard", "connection closed", r.log)
}

// TestDifference: what an engine is sent is the least that makes one set of routes of another, of those that are the
// peer's and that it carries.
func TestDifference(t *testing.T) {
	four := lb.Peer{Name: "r", Address: netip.MustParseAddr("192.0.2.9")}
	both := four
	both.DualStack = true
	r := func(prefix string, pref uint32) lb.Route {
		return lb.Route{Prefix: netip.MustParsePrefix(prefix), LocalPref: pref, Peers: []string{"other", "r"}}
	}
	a := r("192.0.2.1/32", 1)
	b := r("192.0.2.2/32", 1)
	c := r("2001:db8::1/128", 1)
	b2 := r("192.0.2.2/32", 2)
	others := route("192.0.2.2/32", "other")
	for _, tt := range []struct {
		peer     lb.Peer
		from, to []lb.Route
		want     string
	}{
		{both, nil, nil, "put [] remove []"},
		{both, nil, []lb.Route{a, others, b}, "put [192.0.2.1/32 192.0.2.2/32] remove []"},
		{both, []lb.Route{a, b, c}, []lb.Route{a, b, c}, "put [] remove []"},
		{both, []lb.Route{a, b, c}, []lb.Route{a, b2, c}, "put [192.0.2.2/32] remove []"},
		{both, []lb.Route{a, b, c}, []lb.Route{b}, "put [] remove [192.0.2.1/32 2001:db8::1/128]"},
		{both, []lb.Route{a, c}, []lb.Route{b2}, "put [192.0.2.2/32] remove [192.0.2.1/32 2001:db8::1/128]"},
		{both, []lb.Route{a, b}, []lb.Route{a, others}, "put [] remove [192.0.2.2/32]"},
		{four, []lb.Route{c}, []lb.Route{a}, "put [192.0.2.1/32] remove []"},
	} {
		change := diffRoutes(tt.peer, desire(nil, tt.from...).Routes, desire(nil, tt.to...).Routes)
		var put []netip.Prefix
		for _, r := range change.Put {
			put = append(put, r.Prefix)
		}
		if got := fmt.Sprintf("put %v remove %v", put, change.Remove); got != tt.want {
			t.Errorf("from %v to %v: %s, want %s", tt.from, tt.to, got, tt.want)
		}
	}
}
