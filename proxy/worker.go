package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/haproxy"
	"golang.org/x/sys/unix"
)

const (
	// askTimeout is how long a worker has to answer.
	askTimeout = 300 * time.Millisecond
	// endTime is how long a worker that was ordered to end has for it.
	endTime = 2 * time.Second
	// maxWords bounds what is kept of a worker's words.
	maxWords = 4 << 10
)

// worker is one process of HAProxy.
type worker struct {
	cmd     *exec.Cmd
	socket  string // its own, for commands
	started time.Time
	// stopped is when it was told to take no new connections; zero for never.
	stopped time.Time
	ordered bool // to end at once
	// spent is the processor time at the last look, quiet how many looks in a row found no answer and no work.
	spent time.Duration
	quiet int
	words words
	// config is what it started with, until it serves.
	config string
}

func (w *worker) pid() int { return w.cmd.Process.Pid }

// words keeps the last words of a worker.
type words struct {
	mu   sync.Mutex
	text []byte
}

func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range bytes.Lines(p) {
		if bytes.Contains(line, []byte(" stopped (cumulated conns: ")) {
			continue // a line for each part of the configuration, after each reload
		}
		w.text = append(w.text, line...)
		_, _ = daemon.Stderr.Write(line)
	}
	w.text = w.text[max(0, len(w.text)-maxWords):]
	return len(p), nil
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(bytes.TrimSpace(w.text))
}

// startWorker starts the worker of a number with a configuration, whose file the agent may replace meanwhile. It takes
// over the listeners of another one; nil for none.
func startWorker(program, dir, config string, number int, from *worker, ended chan<- *worker) (*worker, error) {
	// HAProxy's own master would forget no-exit-on-failure as it executes itself again in its wait mode, after each
	// load: with the death of one worker it ended all older ones, and their connections.
	args := []string{"-db", "-f", "/dev/stdin"}
	if from != nil {
		// Without -sf, by which HAProxy stops the other one before it answers itself, and for as long as it cannot bind
		// a port closes the listeners of both, with the connections that wait there.
		args = append(args, "-x", from.socket)
	}
	// With a name of its own a worker does not take over this socket: both would answer.
	w := &worker{
		cmd:     exec.Command(program, args...),
		socket:  filepath.Join(dir, fmt.Sprintf("worker-%d.sock", number)),
		started: time.Now(),
		config:  config,
	}
	w.cmd.Env = append(os.Environ(), haproxy.SocketVariable+"="+w.socket)
	w.cmd.Stdin = strings.NewReader(config)
	w.cmd.Stdout, w.cmd.Stderr = &w.words, &w.words
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = w.cmd.Wait() // how it ended is in ProcessState
		ended <- w
	}()
	return w, nil
}

// end orders a worker to end with its connections. It returns about how many it has.
func (w *worker) end() int {
	w.ordered = true
	n := w.connections()
	_ = w.cmd.Process.Signal(syscall.SIGTERM)
	time.AfterFunc(endTime, func() { _ = w.cmd.Process.Kill() })
	return n
}

// connections estimates how many connections a worker has that stopped to listen: its socket for commands is gone too,
// and each connection has a socket to either side.
func (w *worker) connections() int {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", w.pid())) // the pattern is well-formed
	sockets := 0
	for _, f := range files {
		if to, err := os.Readlink(f); err == nil && strings.HasPrefix(to, "socket:") {
			sockets++
		}
	}
	return (sockets + 1) / 2
}

// listens reports whether a worker that was told to stop may still take connections: the socket for commands is the
// last that it closes.
func (w *worker) listens(at time.Time) bool {
	_, err := ask(context.Background(), w.socket, askTimeout)
	return !errors.Is(err, syscall.ECONNREFUSED) && at.Sub(w.stopped) < endTime
}

// works reports whether a worker that does not answer did anything since the last look: it ran, waited for a core, or
// waits for a disk.
func (w *worker) works() bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.pid()))
	if err != nil {
		return true // it ended
	}
	// Its name may have spaces (proc_pid_stat(5)). Then come state, 10 others, and the times in user mode and in the
	// kernel.
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(f) < 13 {
		return true
	}
	user, _ := strconv.Atoi(f[11])
	kernel, _ := strconv.Atoi(f[12])
	before := w.spent
	w.spent = time.Duration(user+kernel)*10*time.Millisecond + daemon.SchedDelay(w.pid()) // USER_HZ is 100
	return f[0] == "D" || w.spent > before+10*time.Millisecond
}

// isFull reports whether a worker has as many files open as it may: it answers no look then, and does not hang.
func (w *worker) isFull() bool {
	var limit unix.Rlimit
	if err := unix.Prlimit(w.pid(), unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		return false
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.pid()))
	return err == nil && uint64(len(files))+2 >= limit.Cur
}

var hashPattern = regexp.MustCompile(`(?m)^description: ([0-9a-f]{8,64})$`)

func ask(ctx context.Context, socket string, limit time.Duration) (hash string, err error) {
	text, err := talk(ctx, socket, "show info", limit)
	if err != nil {
		return "", err
	}
	if m := hashPattern.FindStringSubmatch(text); m != nil {
		return m[1], nil
	}
	return "", errors.New("the running worker shows no configuration of ours")
}

// talkTime bounds a talk with a worker.
const talkTime = 10 * time.Second

// talk sends one line to a socket, and returns the answer.
func talk(ctx context.Context, path, text string, limit time.Duration) (string, error) {
	dialer := net.Dialer{Deadline: time.Now().Add(limit)}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return "", fmt.Errorf("talk to the engine: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_ = conn.SetDeadline(dialer.Deadline) // what is closed meanwhile does not write either
	var answer []byte
	_, err = io.WriteString(conn, text+"\n")
	if err == nil {
		answer, err = io.ReadAll(conn)
	}
	if err != nil {
		return "", fmt.Errorf("talk to the engine: %w", err)
	}
	return string(answer), nil
}
