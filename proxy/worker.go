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
	// askTimeout is the time in which a worker must answer.
	askTimeout = 300 * time.Millisecond
	// endTime is the time in which a worker must end after the order.
	endTime = 2 * time.Second
	// maxOutput bounds the output of a worker that is kept, in bytes.
	maxOutput = 4 << 10
)

// worker is one process of HAProxy.
type worker struct {
	cmd *exec.Cmd
	// socket is the path of its own socket for commands.
	socket  string
	started time.Time
	// stopped is the time at which it was ordered to accept no new connections; zero for never.
	stopped time.Time
	// isEnding reports whether it was ordered to end at once.
	isEnding bool
	// cpuTime is the processor time that it had used at the last check.
	cpuTime time.Duration
	// idleChecks is the number of checks in a row without an answer and without work.
	idleChecks int
	output     outputTail
	// config is the configuration that it started with; "" once it serves.
	config string
}

// pid returns the process id.
func (w *worker) pid() int { return w.cmd.Process.Pid }

// outputTail forwards the output of a worker, and keeps its end.
type outputTail struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer.
func (o *outputTail) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for line := range bytes.Lines(p) {
		if bytes.Contains(line, []byte(" stopped (cumulated conns: ")) {
			continue // a line for each part of the configuration, after each reload
		}
		o.text = append(o.text, line...)
		_, _ = daemon.Stderr.Write(line)
	}

	o.text = o.text[max(0, len(o.text)-maxOutput):]
	return len(p), nil
}

// String returns the end of the output.
func (o *outputTail) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(bytes.TrimSpace(o.text))
}

// startWorker starts a worker with a number and a configuration. It passes the configuration itself, since the agent
// may replace the file meanwhile. The worker takes over the listeners of from; nil for none. It is sent to ended at its
// end.
func startWorker(
	program, dir, config string,
	number int,
	from *worker,
	ended chan<- *worker,
) (*worker, error) {
	// HAProxy's own master mode is not used: after each load the master executes itself again in its wait mode, and
	// forgets no-exit-on-failure. Then the death of one worker would end all older ones, and their connections.
	args := []string{"-db", "-f", "/dev/stdin"}
	if from != nil {
		// Option -sf is not used: with it HAProxy stops the other worker before it answers itself. If it cannot bind a
		// port, it closes the listeners of both, with the connections that wait there.
		args = append(args, "-x", from.socket)
	}

	// Each worker has its own name for the socket. Otherwise it would take over the socket too, and both would answer.
	w := &worker{
		cmd:     exec.Command(program, args...),
		socket:  filepath.Join(dir, fmt.Sprintf("worker-%d.sock", number)),
		started: time.Now(),
		config:  config,
	}
	w.cmd.Env = append(os.Environ(), haproxy.SocketVariable+"="+w.socket)
	w.cmd.Stdin = strings.NewReader(config)
	w.cmd.Stdout = &w.output
	w.cmd.Stderr = &w.output

	if err := w.cmd.Start(); err != nil {
		return nil, err
	}

	go func() {
		_ = w.cmd.Wait() // ProcessState has the result
		ended <- w
	}()
	return w, nil
}

// end orders a worker to end with its connections. It returns about how many connections it has.
func (w *worker) end() int {
	w.isEnding = true
	n := w.connections()
	_ = w.cmd.Process.Signal(syscall.SIGTERM)
	time.AfterFunc(endTime, func() {
		_ = w.cmd.Process.Kill()
	})
	return n
}

// connections estimates the number of connections of a worker that does not listen any more. Its socket for commands is
// closed too, and each connection has two sockets.
func (w *worker) connections() int {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", w.pid())) // the pattern is well-formed
	sockets := 0
	for _, f := range files {
		target, err := os.Readlink(f)
		if err == nil && strings.HasPrefix(target, "socket:") {
			sockets++
		}
	}

	return (sockets + 1) / 2
}

// mayListen reports whether a worker that was ordered to stop may still accept connections: the socket for commands is
// the last socket that it closes.
func (w *worker) mayListen(at time.Time) bool {
	_, err := ask(context.Background(), w.socket, askTimeout)
	isClosed := errors.Is(err, syscall.ECONNREFUSED)
	return !isClosed && at.Sub(w.stopped) < endTime
}

// hasWorked reports whether a worker that does not answer did anything since the last check: it ran, waited for a core,
// or waits for a disk.
func (w *worker) hasWorked() bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.pid()))
	if err != nil {
		return true // it ended
	}

	// The name of the program may have spaces (proc_pid_stat(5)). After it come the state, 10 other fields, and the
	// times in user mode and in the kernel.
	afterName := text[bytes.LastIndexByte(text, ')')+1:]
	f := strings.Fields(string(afterName))
	if len(f) < 13 {
		return true
	}

	user, _ := strconv.Atoi(f[11])
	kernel, _ := strconv.Atoi(f[12])
	ticks := time.Duration(user + kernel)
	before := w.cpuTime
	w.cpuTime = ticks*tickTime + daemon.SchedDelay(w.pid())
	waitsForDisk := f[0] == "D"
	return waitsForDisk || w.cpuTime > before+tickTime
}

// tickTime is the unit of the times in /proc: USER_HZ is 100.
const tickTime = 10 * time.Millisecond

// isFull reports whether a worker has as many files open as it may. It does not answer then, although it does not hang.
func (w *worker) isFull() bool {
	var limit unix.Rlimit
	if err := unix.Prlimit(w.pid(), unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		return false
	}

	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.pid()))
	if err != nil {
		return false
	}

	return uint64(len(files))+2 >= limit.Cur
}

// hashPattern matches the hash of the configuration in a worker's answer.
var hashPattern = regexp.MustCompile(`(?m)^description: ([0-9a-f]{8,64})$`)

// ask returns the hash of the configuration of the worker with a socket.
func ask(ctx context.Context, socket string, limit time.Duration) (hash string, err error) {
	text, err := talk(ctx, socket, "show info", limit)
	if err != nil {
		return "", err
	}

	m := hashPattern.FindStringSubmatch(text)
	if m == nil {
		return "", errors.New("the running worker shows no configuration of ours")
	}

	return m[1], nil
}

// talkTime bounds a command to a worker.
const talkTime = 10 * time.Second

// talk sends one line to a socket, and returns the answer.
func talk(ctx context.Context, path, text string, limit time.Duration) (string, error) {
	dialer := net.Dialer{Deadline: time.Now().Add(limit)}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return "", fmt.Errorf("talk to the engine: %w", err)
	}

	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	_ = conn.SetDeadline(dialer.Deadline) // it fails if ctx has just closed the connection

	_, err = io.WriteString(conn, text+"\n")
	if err != nil {
		return "", fmt.Errorf("talk to the engine: %w", err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return "", fmt.Errorf("talk to the engine: %w", err)
	}

	return string(answer), nil
}
