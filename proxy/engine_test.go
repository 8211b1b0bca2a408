package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// rig is an engine with the real HAProxy before a server that echoes.
type rig struct {
	*testing.T
	*engine
	backend, port string
	stop          context.CancelFunc
	ran           chan error
}

// port returns a free one.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func newRig(t *testing.T, change func(*engine)) *rig {
	t.Helper()
	program, err := exec.LookPath("haproxy")
	if err != nil {
		t.Skip("NO HAPROXY HERE: nothing of the engine is tested; run make install")
	}
	dir, err := os.MkdirTemp("", "engine") // the path of a socket must be short
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { echo.Close() })
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
	r := &rig{
		T: t, engine: newEngine(slog.New(slog.NewTextHandler(t.Output(), nil))), backend: echo.Addr().String(),
		port: freePort(t),
	}
	r.program = program
	r.dir = dir
	r.listen = "127.0.0.1:" + freePort(t)
	r.drain = time.Hour
	if change != nil {
		change(r.engine)
	}
	r.run()
	return r
}

func (r *rig) run() {
	ctx, stop := context.WithCancel(r.Context())
	ran := make(chan error, 1)
	go func() { ran <- r.engine.Run(ctx) }()
	r.stop, r.ran = stop, ran
	r.Cleanup(func() {
		stop()
		select {
		case <-ran:
		case <-time.After(20 * time.Second):
			r.Error("the engine does not end")
		}
	})
	r.until("it listens", func() bool { return r.status("/readyz") != 0 })
}

func (r *rig) until(what string, cond func() bool) {
	r.Helper()
	nstest.Until(r.T, 20*time.Second, what, cond)
}

// config is a configuration.
func (r *rig) config(hash, more string) string {
	return fmt.Sprintf(`global
    description %s
    stats socket "${HOLDFAST_SOCKET}" mode 600 level admin expose-fd listeners
    maxconn 100
defaults
    mode tcp
    timeout client 1h
    timeout server 1h
    timeout connect 1s
listen a:b:80
    bind 127.0.0.1:%s
    server s %s
%s`, hash, r.port, r.backend, more)
}

// write writes a configuration as the agent does.
func (r *rig) write(hash, more string) {
	r.Helper()
	text := r.config(hash, more)
	dir := filepath.Join(r.dir, "a")
	must(r,
		errors.Join(os.MkdirAll(dir, 0o700), put(dir, configFile, text), put(r.dir, desiredFile, `{"namespaces": ["a"]}`)))
}

// has returns the configuration that is served, "" for none.
func (r *rig) has() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.seats["a"]; t != nil {
		return t.hash
	}
	return ""
}

// seat is the seat of namespace a.
func (r *rig) seat() (s *seat) {
	r.Helper()
	r.until("it has a seat", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if t := r.seats["a"]; t != nil {
			s = t.seat
		}
		return s != nil
	})
	return s
}

// serve writes a configuration and waits until a worker has it.
func (r *rig) serve(hash string) {
	r.Helper()
	r.write(hash, "")
	if r.has() != "" {
		if got := r.tell("reload"); got != "Success=1\n" {
			r.Fatalf("reload: %q", got)
		}
	}
	r.until("a worker serves "+hash, func() bool { return r.has() == hash })
}

// tell gives a command and returns the answer.
func (r *rig) tell(command string) string {
	r.Helper()
	conn, err := net.Dial("unix", filepath.Join(r.dir, masterSocket))
	must(r, err)
	defer conn.Close()
	fmt.Fprintln(conn, command+" a")
	text, err := io.ReadAll(conn)
	must(r, err)
	return string(text)
}

func (r *rig) get(path string) (int, string) {
	answer, err := http.Get("http://" + r.listen + path)
	if err != nil {
		return 0, ""
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text)
}

func (r *rig) status(path string) int {
	status, _ := r.get(path)
	return status
}

// dial opens a connection through the proxy.
func (r *rig) dial() net.Conn {
	r.Helper()
	var conn net.Conn
	r.until("the proxy accepts", func() (ok bool) { conn, ok = r.try(); return ok })
	r.Cleanup(func() { conn.Close() })
	return conn
}

func (r *rig) try() (net.Conn, bool) {
	conn, err := net.DialTimeout("tcp", "127.0.0.1:"+r.port, time.Second)
	if err != nil {
		return nil, false
	}
	if !echoes(conn) {
		conn.Close()
		return nil, false
	}
	return conn, true
}

// echoes reports whether a connection works.
func echoes(conn net.Conn) bool {
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintln(conn, "hello")
	line, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && line == "hello\n"
}

// pid returns the process that serves.
func (r *rig) pid() int {
	r.Helper()
	pid := 0
	r.until("a worker serves", func() bool {
		got := make(chan int, 1)
		s := r.seat()
		s.call(func() {
			if s.serving == nil {
				got <- 0
			} else {
				got <- s.serving.pid()
			}
		})
		pid = <-got
		return pid != 0
	})
	return pid
}

func (r *rig) signal(pid int, s syscall.Signal) {
	r.Helper()
	must(r, syscall.Kill(pid, s))
}

func (r *rig) failed(what string) float64 {
	return testutil.ToFloat64(r.failures.WithLabelValues("a", what))
}

func (r *rig) endedFor(cause string) float64 {
	return testutil.ToFloat64(r.endings.WithLabelValues("a", cause))
}

// TestServes: the proxy is ready, and says what it serves, when the agent has written a configuration and a worker runs
// it; a speaker hears of the next one at once.
func TestServes(t *testing.T) {
	r := newRig(t, nil)
	if r.status("/readyz") != http.StatusServiceUnavailable || r.status("/healthz") != http.StatusOK {
		t.Error("without a configuration: want not ready, and alive")
	}
	if _, text := r.get("/frontends"); text != `{"hash":"","frontends":{}}`+"\n" {
		t.Errorf("without a configuration: %s", text)
	}
	r.serve("aaaa0000")
	if r.status("/readyz") != http.StatusOK {
		t.Error("not ready")
	}
	what, _ := r.state()
	heard := make(chan string, 1)
	go func() {
		_, text := r.get("/frontends?after=" + what.Hash)
		heard <- text
	}()
	select {
	case text := <-heard:
		t.Errorf("nothing changed: %s", text)
	case <-time.After(7 * time.Second): // longer than the server's time for a request
	}
	r.serve("aaaa1111")
	var got struct {
		Hash      string
		Frontends map[string]map[string]int
	}
	select {
	case text := <-heard:
		if err := json.Unmarshal([]byte(text), &got); err != nil || got.Hash == what.Hash ||
			strconv.Itoa(got.Frontends["a/b"]["80"]) != r.port {
			t.Errorf("%v, %s", err, text)
		}
	case <-time.After(5 * time.Second):
		t.Error("a speaker does not hear of the next configuration")
	}
}

// TestTakeOver: when a reload is done the new worker alone takes new connections, however late the one before hears
// that it shall stop. That it ends is no failure.
func TestTakeOver(t *testing.T) {
	late := filepath.Join(t.TempDir(), "late")
	must(t, os.WriteFile(late, []byte(`#!/bin/sh
exec 3<&0
haproxy "$@" <&3 &
trap 'sleep 0.5; kill -USR1 $!' USR1
trap 'kill $!' TERM
while kill -0 $!; do wait $!; done 2>/dev/null
`), 0o700))
	r := newRig(t, func(e *engine) { e.program = late })
	r.serve("aaaa0000")
	other, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer other.Close()
	go nstest.ServeEach(other, func(c net.Conn) { fmt.Fprintln(c, "other") })
	r.backend = other.Addr().String()
	r.serve("aaaa1111")
	for range 50 {
		conn, err := net.Dial("tcp", "127.0.0.1:"+r.port)
		must(t, err)
		fmt.Fprintln(conn, "hello")
		if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "other\n" {
			t.Errorf("a new connection has what was: %q %v", line, err)
		}
		conn.Close()
	}
	for i := range 5 {
		r.serve(fmt.Sprintf("aaaa000%d", i))
	}
	if r.failed("died") != 0 {
		t.Errorf("%v workers died", r.failed("died"))
	}
}

// TestWorkerDies: another worker serves at once, and the connections of older ones last.
func TestWorkerDies(t *testing.T) {
	r := newRig(t, nil)
	r.serve("aaaa0000")
	older := r.dial()
	r.serve("aaaa1111")
	for range 3 {
		pid := r.pid()
		r.signal(pid, syscall.SIGKILL)
		start := time.Now()
		r.dial()
		t.Logf("accepts %v after the death", time.Since(start))
		r.until("another worker serves", func() bool { p := r.pid(); return p != pid && p != 0 })
		if r.has() != "aaaa1111" || r.status("/readyz") != http.StatusOK {
			t.Errorf("serves %q, ready %d: a quick replacement changes nothing", r.has(), r.status("/readyz"))
		}
	}
	if !echoes(older) {
		t.Error("the connection of an older worker ended with the death of another one")
	}
	if r.failed("died") != 3 {
		t.Errorf("%v deaths", r.failed("died"))
	}
}

// TestWorkerHangs: a worker that is stopped is replaced within two seconds.
func TestWorkerHangs(t *testing.T) {
	r := newRig(t, nil)
	r.serve("aaaa0000")
	for range 2 {
		pid := r.pid()
		r.signal(pid, syscall.SIGSTOP)
		start := time.Now()
		r.until("another worker answers", func() bool { p := r.pid(); return p != 0 && p != pid })
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
	}
	if r.failed("hung") != 2 {
		t.Errorf("%v hung", r.failed("hung"))
	}
}

// TestRefused: HAProxy's refusal of a configuration is reported, and the worker goes on; after its death the last good
// one is used.
func TestRefused(t *testing.T) {
	r := newRig(t, nil)
	r.serve("aaaa0000")
	conn, pid := r.dial(), r.pid()
	r.write("bbbb0000", "    nonsense here\n")
	if got := r.tell("reload"); !strings.HasPrefix(got, "Success=0\n--\n") || !strings.Contains(got, "nonsense") {
		t.Errorf("reload: %q", got)
	}
	// Neither costs it a connection that another program has a port, which HAProxy sees last.
	r.write("bbbb1111", "listen taken\n    bind "+r.listen+"\n")
	outcome := make(chan string)
	go func() { outcome <- r.tell("reload") }()
	for got := ""; got == ""; {
		select {
		case got = <-outcome:
			if !strings.HasPrefix(got, "Success=0\n--\n") {
				t.Errorf("reload: %q", got)
			}
		default:
			if c, ok := r.try(); !ok {
				t.Error("a connection failed beside a refused configuration")
			} else {
				c.Close()
			}
		}
	}
	if r.pid() != pid || r.has() != "aaaa0000" || !echoes(conn) {
		t.Errorf("process %d after %d, serves %s", r.pid(), pid, r.has())
	}
	r.signal(pid, syscall.SIGKILL)
	r.dial()
	if r.has() != "aaaa0000" || r.failed("refused") != 3 {
		t.Errorf("serves %s, %v refused", r.has(), r.failed("refused"))
	}
	r.serve("cccc0000")
}

// TestRefusedFirst: without a good configuration the engine waits for one.
func TestRefusedFirst(t *testing.T) {
	r := newRig(t, nil)
	r.write("aaaa0000", "    nonsense here\n")
	r.until("it is refused", func() bool { return r.failed("refused") >= 2 })
	r.until("the others need not wait for it", func() bool { return r.status("/readyz") == http.StatusOK })
	r.serve("aaaa1111")
}

// TestWorkersBounded: connections of an older worker last, until there are too many of them or their time is over; both
// is counted.
func TestWorkersBounded(t *testing.T) {
	r := newRig(t, nil)
	var conns []net.Conn
	for i := range 5 {
		r.serve(fmt.Sprintf("aaaa000%d", i))
		conns = append(conns, r.dial(), r.dial())
	}
	r.until("two older workers are left", func() bool { return r.tell("old") == "2" })
	for i, conn := range conns {
		if echoes(conn) != (i >= 4) {
			t.Errorf("connection %d of 10: works %v", i, i < 4)
		}
	}
	if n := r.endedFor("limit"); n != 4 {
		t.Errorf("%v connections counted", n)
	}
}

func TestDrain(t *testing.T) {
	r := newRig(t, func(e *engine) { e.drain = 3 * time.Second })
	r.serve("aaaa0000")
	conn := r.dial()
	r.serve("aaaa1111")
	if !echoes(conn) {
		t.Error("the connection ended with the reload")
	}
	r.until("its time is over", func() bool { return r.endedFor("drain") == 1 && !echoes(conn) })
	r.dial()
}

// TestTermination: first no node sends new connections, then open ones have their time.
func TestTermination(t *testing.T) {
	r := newRig(t, func(e *engine) { e.terminate = 2 * time.Second })
	r.serve("aaaa0000")
	conn := r.dial()
	heard := make(chan string, 1)
	go func() {
		what, _ := r.state()
		_, text := r.get("/frontends?after=" + what.Hash)
		heard <- text
	}()
	r.until("it waits", func() bool { return r.status("/readyz") == http.StatusOK })
	start := time.Now()
	r.stop()
	if text := <-heard; !strings.Contains(text, `"hash":""`) || time.Since(start) > time.Second {
		t.Errorf("after %v: %s", time.Since(start), text)
	}
	if r.status("/readyz") != http.StatusServiceUnavailable {
		t.Error("ready")
	}
	if late, ok := r.try(); !ok || !echoes(conn) {
		t.Error("connections fail before other proxies have taken over")
	} else {
		late.Close()
	}
	r.write("bbbb0000", "")
	if answer := r.tell("reload"); !strings.HasPrefix(answer, "Success=1") {
		t.Errorf("until then the agent is refused: %s", answer)
	}
	if err := <-r.ran; err != nil {
		t.Error(err)
	}
	r.ran <- nil
	if took := time.Since(start); took < r.terminate || took > r.terminate+endTime+time.Second || echoes(conn) ||
		r.endedFor("termination") != 1 {
		t.Errorf("after %v, %v connections counted", took, r.endedFor("termination"))
	}
}

// TestTerminationIdle: a proxy without connections ends early.
func TestTerminationIdle(t *testing.T) {
	r := newRig(t, func(e *engine) { e.terminate = time.Hour })
	r.serve("aaaa0000")
	start := time.Now()
	r.stop()
	err := <-r.ran
	r.ran <- nil
	if took := time.Since(start); err != nil || took < handoverTime || took > handoverTime+10*time.Second ||
		r.endedFor("termination") != 0 {
		t.Errorf("%v, after %v", err, took)
	}
}

// TestEngineAgain: an engine that starts again in the same pod serves at once.
func TestEngineAgain(t *testing.T) {
	r := newRig(t, nil)
	r.serve("aaaa0000")
	r.stop()
	if err := <-r.ran; err != nil {
		t.Error(err)
	}
	r.ran <- nil
	// Killed, it would have left its socket.
	must(t, os.WriteFile(filepath.Join(r.dir, masterSocket), nil, 0o600))
	before := r.engine
	r.engine = newEngine(before.log)
	r.program = before.program
	r.dir = before.dir
	r.listen = before.listen
	r.drain = before.drain
	r.run()
	r.until("it serves", func() bool { return r.has() == "aaaa0000" })
	r.dial()
}

// TestKeep: an agent that ends or hangs is started again, and the pod's order to end ends both, after endpoints have
// followed for a while.
func TestKeep(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	lines := func() string { text, _ := os.ReadFile(log); return string(text) }
	var hang atomic.Bool
	health := httptest.NewServer(daemon.Health(func() error {
		if hang.Load() {
			return checkRun(time.Now().Add(-runTime - time.Second))
		}
		return checkRun(time.Time{})
	}, daemon.AlwaysHealthy))
	defer health.Close()
	const stay = time.Second
	ended := make(chan int, 1)
	go func() {
		ended <- supervise([]string{"sh",
			"-c", "trap 'echo y >> " + log + "; exit' TERM; echo x >> " + log + "; test $(wc -l < " + log +
				") = 1 && exit 2; while :; do sleep 0.1; done"},
			strings.TrimPrefix(health.URL, "http://"), stay)
	}()
	nstest.Until(t, 10*time.Second, "it starts again", func() bool { return lines() == "x\nx\n" })
	hang.Store(true)
	nstest.Until(t, 2*checkInterval, "it starts again when it hangs", func() bool { return lines() == "x\nx\nx\n" })
	hang.Store(false)
	ordered := time.Now()
	must(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	select {
	case code := <-ended:
		if took := time.Since(ordered); took < stay || code != 0 || lines() != "x\nx\nx\ny\n" {
			t.Errorf("after %v: code %d, %q", took, code, lines())
		}
	case <-time.After(10 * time.Second):
		t.Error("it does not end")
	}
}

// TestHangs: an agent that is stopped does not answer; an agent that does not listen yet waits for the API server.
func TestHangs(t *testing.T) {
	t.Parallel()
	stopped, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer stopped.Close()
	lives := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }))
	defer lives.Close()
	for at, want := range map[string]bool{
		stopped.Addr().String():                  true,
		strings.TrimPrefix(lives.URL, "http://"): false,
		"127.0.0.1:" + freePort(t):               false,
	} {
		if err := checkHealth(at); (err != nil) != want {
			t.Errorf("%s: %v, want an error: %t", at, err, want)
		}
	}
	if err := errors.Join(checkRun(time.Now().Add(-commandTime)), checkRun(time.Time{})); err != nil {
		t.Errorf("a run that waits for the engine, and none: %v", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestShare: the connections of an old worker count, so that a namespace has its share once.
func TestShare(t *testing.T) {
	r := newRig(t, nil)
	r.serve("aaaa0000")
	for range 30 {
		r.dial()
	}
	r.serve("aaaa1111")
	limit := func() string {
		text, err := talk(t.Context(), filepath.Join(r.dir, "a", workerSocket), "show info", talkTime)
		if m := regexp.MustCompile(`(?m)^Maxconn: (\d+)$`).FindStringSubmatch(text); m != nil && err == nil {
			return m[1]
		}
		return fmt.Sprint(err)
	}
	r.until("the worker that serves has what is left", func() bool { return limit() == "70" })
	r.dial()
}

// TestSeats: a namespace that has nothing proxied any more keeps its open connections, unless another one needs its
// seat; if it comes back before, it is served again.
func TestSeats(t *testing.T) {
	r := newRig(t, func(e *engine) { e.maxSeats = 1 })
	r.serve("aaaa0000")
	conn := r.dial()
	want := func(text string) { must(t, put(r.dir, desiredFile, text)) }

	want(`{"namespaces": []}`)
	r.until("the port is closed", func() bool {
		c, ok := r.try()
		if ok {
			c.Close()
		}
		return !ok
	})
	if !echoes(conn) {
		t.Error("an open connection ended with the Services")
	}
	want(`{"namespaces": ["a"]}`)
	r.dial()
	if !echoes(conn) {
		t.Error("an open connection ended when the Services came back")
	}

	must(t, os.Mkdir(filepath.Join(r.dir, "b"), 0o700))
	must(t, put(filepath.Join(r.dir, "b"), configFile, r.config("bbbb0000", "")))
	want(`{"namespaces": ["b", "../b"]}`)
	r.until("the other namespace is served", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.seats["b"] != nil && r.seats["b"].hash == "bbbb0000" && len(r.seats) == 1
	})
	r.dial()
	if echoes(conn) {
		t.Error("a connection of the namespace that left goes on, and its seat is taken")
	}
}
