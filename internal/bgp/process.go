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

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
	"github.com/holdfast-lb/holdfast/internal/child"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// lookInterval is the time between two looks at an engine, each with a question.
	lookInterval = time.Second
	// hangTime is how long an engine may need for an answer.
	hangTime = 10 * time.Second
	// leaveLooks is how many looks an engine that is to leave is given, to say goodbye to a router that takes no data.
	leaveLooks = 3
	// quitTime is how long an engine that hangs has to print its stacks.
	quitTime = time.Second
)

var (
	errStart = errors.New("cannot start the BGP engine")
	errHangs = errors.New("the BGP engine did not answer")
	errEnded = errors.New("the BGP engine ended")
)

// serve has one engine serve the peer. It returns nil when the engine left because its settings are not wanted any more,
// and otherwise how it died, and its last words.
func (s *supervisor) serve(settings wire.Settings) (stderr string, err error) {
	words := &lastWords{secret: string(settings.Password)}
	p, err := child.Start(s.speaker.config.Command, words)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errStart, err)
	}
	s.speaker.mu.Lock()
	s.pid = p.PID()
	s.speaker.mu.Unlock()
	var answered, leaving atomic.Bool
	ended, read := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		s.readNotices(p.Conn, settings, &answered)
	}()
	var sending sync.WaitGroup
	sending.Go(func() { s.sendOrders(p.Conn, settings, &leaving, ended) })
	hangs, err := s.watch(p, settings, &leaving, &answered)
	close(ended)
	<-read
	_ = p.Conn.Close()
	sending.Wait()
	stderr, line := words.all()
	switch {
	case hangs:
		return stderr, fmt.Errorf("%w for %v", errHangs, hangTime)
	case leaving.Load():
		return stderr, nil // even if the peer is wanted again: the next engine serves it
	case err != nil:
		err = fmt.Errorf("%w: %w", errEnded, err)
	default:
		err = errEnded
	}
	if line != "" {
		err = fmt.Errorf("%w: %s", err, line)
	}
	return stderr, err
}

// watch waits for the end of an engine. It ends one that hangs or does not leave.
func (s *supervisor) watch(process *child.Process, settings wire.Settings, leaving, answered *atomic.Bool) (hangs bool, err error) {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	var p child.Pulse
	for looks := 0; ; {
		select {
		case err := <-process.Ended():
			return hangs, err
		case <-tick.C:
		}
		if _, leave := s.goal(settings); leave != nil || leaving.Load() {
			if looks++; looks > leaveLooks {
				process.Kill()
			}
			continue
		}
		if answered.Swap(false) {
			p.Answered()
		}
		if !hangs && p.Look(lookInterval, child.Waited(process.PID())) >= hangTime {
			hangs = true
			process.Quit()
			defer time.AfterFunc(quitTime, process.Kill).Stop()
		}
	}
}

// sendOrders sends an engine its settings, and then the routes as they change, until it is to leave or ended. A write
// waits for an engine that hangs, until that is ended.
func (s *supervisor) sendOrders(conn io.Writer, settings wire.Settings, leaving *atomic.Bool, ended <-chan struct{}) {
	out := gob.NewEncoder(conn)
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	var sent []lb.Route
	for next := (wire.Order{Settings: &settings}); ; {
		routes, leave := s.goal(settings)
		if leave != nil {
			leaving.Store(true)
			_ = out.Encode(wire.Order{Leave: leave})
			return
		}
		next.Routes, sent = difference(sent, routes), routes
		if (next.Settings != nil || next.Ping || !next.Routes.Empty()) && out.Encode(next) != nil {
			return
		}
		next = wire.Order{}
		select {
		case <-ended:
			return
		case <-s.wake:
		case <-tick.C:
			next.Ping = true
		}
	}
}

// readNotices takes what an engine sends until it ends.
func (s *supervisor) readNotices(conn io.Reader, settings wire.Settings, answered *atomic.Bool) {
	for in := gob.NewDecoder(conn); ; {
		var n wire.Notice
		if in.Decode(&n) != nil {
			return
		}
		switch {
		case n.Report != nil:
			s.report(settings, *n.Report)
		case n.Warning != "":
			s.speaker.config.Log.Warn("BGP engine", "peer", settings.Name, "address", settings.Address, "warning", n.Warning)
		case n.Pong:
			answered.Store(true)
		}
	}
}

// lastWords keeps the beginning of what a process prints: of a panic, the reason and the stack where it happened.
type lastWords struct {
	secret string
	kept   bytes.Buffer
}

const (
	mostWords = 4096
	// mostReason bounds the first line, which the state of the session shows.
	mostReason = 200
)

// Write implements io.Writer, and never fails.
func (w *lastWords) Write(b []byte) (int, error) {
	w.kept.Write(b[:min(len(b), mostWords-w.kept.Len())])
	return len(b), nil
}

// all returns the words, without the secret, and in one line those that a state shows of a crash.
func (w *lastWords) all() (text, line string) {
	text = strings.TrimSpace(w.kept.String())
	if w.secret != "" {
		text = strings.ReplaceAll(text, w.secret, "***")
	}
	line, _, _ = strings.Cut(text, "\n")
	return text, strings.ToValidUTF8(line[:min(len(line), mostReason)], "")
}
