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
	// lookInterval is the time between two looks at an engine, each with an order, which it answers.
	lookInterval = time.Second
	// hangTime is how long an engine may need for an answer.
	hangTime = 10 * time.Second
	// leaveLooks is how many looks an engine that is to leave is given, to send its NOTIFICATION to a router that takes
	// no data.
	leaveLooks = 3
	// quitTime is how long an engine that hangs has to print its stacks.
	quitTime = time.Second
)

var errStart = errors.New("cannot start the BGP engine")

// serve has one engine serve the peer. It returns nil when the engine left because its settings are not wanted any
// more, or ended with its session, and otherwise how it died, and its last words.
func (s *supervisor) serve(settings lb.Peer) (stderr string, err error) {
	words := &lastWords{secret: string(settings.Password)}
	p, err := child.Start(s.speaker.config.Command, words)
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
	stderr, line := words.all()
	switch {
	case hangs:
		return stderr, fmt.Errorf("the BGP engine did not answer for %v", hangTime)
	case err == nil || leaving.Load():
		return stderr, nil // even if the peer is wanted again: the next engine serves it
	case line != "":
		return stderr, fmt.Errorf("the BGP engine ended: %w: %s", err, line)
	}

	return stderr, fmt.Errorf("the BGP engine ended: %w", err)
}

// watch waits for the end of an engine. It ends one that hangs or does not leave.
func (s *supervisor) watch(
	process *child.Process,
	settings lb.Peer,
	leaving, answered *atomic.Bool,
) (hangs bool, err error) {
	tick := time.Tick(lookInterval)
	var timer daemon.HangTimer
	for looks := 0; ; {
		select {
		case err := <-process.Ended():
			return hangs, err
		case <-tick:
		}

		if _, leave := s.goal(settings); leave != nil || leaving.Load() {
			if looks++; looks > leaveLooks {
				process.Kill()
			}

			continue
		}

		if answered.Swap(false) {
			timer.Reset()
		}

		if !hangs && timer.Advance(lookInterval, daemon.SchedDelay(process.PID())) >= hangTime {
			hangs = true
			process.Quit()
			defer time.AfterFunc(quitTime, process.Kill).Stop()
		}
	}
}

// sendOrders sends an engine its settings, and then the routes as they change, until it is to leave or ended. A write
// waits for an engine that hangs, until that is ended.
func (s *supervisor) sendOrders(conn io.Writer, settings lb.Peer, leaving *atomic.Bool, ended <-chan struct{}) {
	out := gob.NewEncoder(conn)
	tick := time.Tick(lookInterval)
	var sent routes
	for next := (lb.Order{Peer: &settings}); ; {
		all, leave := s.goal(settings)
		if leave != nil {
			leaving.Store(true)
			_ = out.Encode(lb.Order{Leave: leave})
			return
		}

		changes := difference(settings, sent, all)
		next.Put, next.Remove, sent = changes.Put, changes.Remove, all
		if out.Encode(next) != nil {
			return
		}

		next = lb.Order{}
		select {
		case <-ended:
			return
		case <-s.wake:
		case <-tick:
		}
	}
}

// readNotices takes what an engine sends until it ends.
func (s *supervisor) readNotices(conn io.Reader, settings lb.Peer, answered *atomic.Bool) {
	for in := gob.NewDecoder(conn); ; {
		var n lb.Notice
		if in.Decode(&n) != nil {
			return
		}

		answered.Store(true)
		s.report(settings, n)
	}
}

// lastWords keeps the beginning of what a process prints: of a panic, the reason and the stack where it happened.
type lastWords struct {
	secret string
	kept   bytes.Buffer
}

const (
	maxWords = 4096
	// maxReason bounds the first line, which the state of the session shows.
	maxReason = 200
)

// Write implements io.Writer, and never fails.
func (w *lastWords) Write(b []byte) (int, error) {
	w.kept.Write(b[:min(len(b), maxWords-w.kept.Len())])
	return len(b), nil
}

// all returns the words, without the secret, and in one line those that a state shows of a crash.
func (w *lastWords) all() (text, line string) {
	text = strings.TrimSpace(w.kept.String())
	if w.secret != "" {
		text = strings.ReplaceAll(text, w.secret, "***")
	}
	line, _, _ = strings.Cut(text, "\n")
	return text, strings.ToValidUTF8(line[:min(len(line), maxReason)], "")
}
