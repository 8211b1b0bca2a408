package bgp

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/child"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// pollInterval is the time between two polls of an engine. Each poll is an order, which the engine answers.
	pollInterval = time.Second
	// hangTime is the time without an answer after which an engine counts as hanging.
	hangTime = 10 * time.Second
	// maxLeavePolls is the number of polls after which a leaving engine is killed. It needs the time to send its
	// NOTIFICATION to a router that reads no data.
	maxLeavePolls = 3
	// quitTime is the time for which a hanging engine may print its stacks.
	quitTime = time.Second
)

var errStart = errors.New("cannot start the BGP engine")

// serve runs one engine for the peer until it ends. It returns nil if the engine left because its settings are no
// longer desired, or ended with its session. Otherwise it returns the reason for the engine's death, and its output.
func (s *supervisor) serve(settings lb.Peer) (stderr string, err error) {
	output := &crashOutput{secret: string(settings.Password)}
	p, err := child.Start(s.speaker.config.Command, output)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errStart, err)
	}

	s.speaker.mu.Lock()
	s.pid = p.PID()
	s.speaker.mu.Unlock()

	var answered, leaving atomic.Bool
	ended := make(chan struct{})
	var reading, sending sync.WaitGroup
	reading.Go(func() { s.readNotices(p.Conn, settings, &answered) })
	sending.Go(func() { s.sendOrders(p.Conn, settings, &leaving, ended) })

	hangs, err := s.watch(p, settings, &leaving, &answered)
	close(ended)
	reading.Wait()
	_ = p.Conn.Close()
	sending.Wait()

	stderr, line := output.text()
	switch {
	case hangs:
		return stderr, fmt.Errorf("the BGP engine did not answer for %v", hangTime)
	case err == nil || leaving.Load():
		return stderr, nil // if the peer is desired again meanwhile, the next engine serves it
	case line != "":
		return stderr, fmt.Errorf("the BGP engine ended: %w: %s", err, line)
	}

	return stderr, fmt.Errorf("the BGP engine ended: %w", err)
}

// watch waits for the end of an engine. It kills an engine that hangs or does not leave.
func (s *supervisor) watch(
	process *child.Process,
	settings lb.Peer,
	leaving, answered *atomic.Bool,
) (hangs bool, err error) {
	tick := time.Tick(pollInterval)
	var timer daemon.HangTimer
	leavePolls := 0
	for {
		select {
		case err := <-process.Ended():
			return hangs, err
		case <-tick:
		}

		_, leave := s.target(settings)
		if leave != nil || leaving.Load() {
			leavePolls++
			if leavePolls > maxLeavePolls {
				process.Kill()
			}
			continue
		}

		if answered.Swap(false) {
			timer.Reset()
		}

		if !hangs && timer.Advance(pollInterval, daemon.SchedDelay(process.PID())) >= hangTime {
			hangs = true
			process.Quit()
			defer time.AfterFunc(quitTime, process.Kill).Stop()
		}
	}
}

// sendOrders sends an engine its settings, and then each change of its routes, until the engine must leave or has
// ended. While the engine hangs, a write blocks until watch kills the engine.
func (s *supervisor) sendOrders(conn io.Writer, settings lb.Peer, leaving *atomic.Bool, ended <-chan struct{}) {
	out := gob.NewEncoder(conn)
	tick := time.Tick(pollInterval)
	var sent routes
	first := &settings
	for {
		all, leave := s.target(settings)
		if leave != nil {
			leaving.Store(true)
			_ = out.Encode(lb.Order{Leave: leave})
			return
		}

		order := diffRoutes(settings, sent, all)
		order.Peer = first
		if out.Encode(order) != nil {
			return
		}

		first = nil
		sent = all
		select {
		case <-ended:
			return
		case <-s.wake:
		case <-tick:
		}
	}
}

// readNotices receives the notices of an engine until it ends.
func (s *supervisor) readNotices(conn io.Reader, settings lb.Peer, answered *atomic.Bool) {
	for in := gob.NewDecoder(conn); ; {
		var n lb.Notice
		if in.Decode(&n) != nil {
			return
		}

		answered.Store(true)
		s.receive(settings, n)
	}
}

// crashOutput keeps the beginning of a process' output: of a panic, the reason and the stack of the goroutine.
type crashOutput struct {
	secret string
	kept   bytes.Buffer
}

// Limits in bytes. The state of the session shows the first line.
const (
	maxCrashOutput = 4096
	maxCrashLine   = 200
)

// Write implements io.Writer. It never fails.
func (w *crashOutput) Write(b []byte) (int, error) {
	w.kept.Write(b[:min(len(b), maxCrashOutput-w.kept.Len())])
	return len(b), nil
}

// text returns the output without the secret, and the beginning of its first line.
func (w *crashOutput) text() (text, line string) {
	text = strings.TrimSpace(w.kept.String())
	if w.secret != "" {
		text = strings.ReplaceAll(text, w.secret, "***")
	}
	line, _, _ = strings.Cut(text, "\n")
	return text, strings.ToValidUTF8(line[:min(len(line), maxCrashLine)], "")
}
