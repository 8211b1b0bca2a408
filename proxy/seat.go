package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/holdfast-lb/holdfast/internal/haproxy"
	"github.com/prometheus/client_golang/prometheus"
)

// What engine and agent share in the directory of a seat.
const (
	configFile   = "haproxy.cfg"
	goodFile     = "haproxy-good.cfg" // the last that a worker took
	workerSocket = "worker.sock"      // leads to the serving worker's own
)

const (
	// lookInterval is the time between two looks at the worker that serves, startLook while another one starts, and
	// shareInterval between two looks at the connections of old ones.
	lookInterval, startLook, shareInterval = 250 * time.Millisecond, 5 * time.Millisecond, time.Second
	// quietLooks is after how many looks without answer or work a worker hangs; busyTime bounds how long it may work
	// without an answer, as it does when it starts.
	quietLooks, busyTime = 2, 30 * time.Second
	// maxBrief is after how many workers in a row that died at once there is a pause.
	maxBrief = 3
	// graceTime is how long the frontends stay when no worker answers: a dead worker is replaced sooner.
	graceTime = 2 * time.Second
	// handoverTime is how long the proxy still listens after it said that it ends: no node sends new connections then.
	handoverTime = 5 * time.Second
)

// seatConfig is what a seat needs.
type seatConfig struct {
	log              *slog.Logger
	program, dir     string
	maxWorkers       int
	drain, terminate time.Duration
	// shows is called with what the seat serves.
	shows func(view)

	failures, endings *prometheus.CounterVec
	oldWorkers        prometheus.Gauge
}

// view is what others see of a seat.
type view struct {
	// hash is the configuration that is served, "" for none.
	hash string
	// refused: no configuration of it starts.
	refused   bool
	frontends map[string]map[string]uint16
}

// seat is the HAProxy of one namespace: the worker that serves, and older ones, whose connections last. One goroutine
// has it.
type seat struct {
	seatConfig
	calls chan func()
	ended chan *worker
	// over is closed at the end.
	over chan struct{}
	// serving is nil while none does, next while none starts.
	serving, next *worker
	old           []*worker // oldest first
	// wanted are the reloads that wait for a start, waiting those that wait for what is starting.
	wanted, waiting []chan<- string
	// answered is when a worker last did, asked when the serving one was asked.
	answered, asked time.Time
	present         view
	connections     share
	attempts        attempts
	started         int       // workers
	leaving         time.Time // zero for not
	// closed: the namespace has nothing that is proxied any more.
	closed bool
}

// share is how many connections a namespace may have.
type share struct {
	// limit is the number in the configuration of the worker that serves, and left what old workers leave of it.
	limit, left int
	looked      time.Time
}

// attempts are those to start a worker while none serves.
type attempts struct {
	notBefore time.Time
	tryGood   bool
	brief     int // workers in a row that died at once
}

func newSeat(c seatConfig) *seat {
	return &seat{seatConfig: c, calls: make(chan func()), ended: make(chan *worker), over: make(chan struct{})}
}

// run has the workers. It ends with them after ctx or close, or at once when broken is closed.
func (s *seat) run(ctx context.Context, broken <-chan struct{}) {
	defer close(s.over)
	order := ctx.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-broken:
			return
		case <-order:
			order, s.leaving = nil, time.Now()
		case w := <-s.ended:
			s.forget(w)
		case call := <-s.calls:
			call()
		case <-timer.C:
		}
		if s.step(time.Now()) {
			s.shows(view{})
			return
		}
		s.publish(time.Now())
		s.oldWorkers.Set(float64(len(s.old)))
		pause := lookInterval
		if s.next != nil || s.serving == nil {
			pause = startLook
		}
		timer.Reset(pause)
	}
}

// step does what is to be done. It returns true at the end.
func (s *seat) step(at time.Time) (done bool) {
	if !s.leaving.IsZero() && at.Sub(s.leaving) >= min(handoverTime, s.terminate/2) {
		return s.leave(at)
	}
	if s.closed {
		return s.leave(at)
	}
	s.look(at)
	if s.next == nil && !at.Before(s.attempts.notBefore) && (s.serving == nil || len(s.wanted) > 0) {
		s.start(at)
	}
	s.endDrained(at)
	s.limit(at)
	return false
}

// endDrained ends the old workers whose time is over.
func (s *seat) endDrained(at time.Time) {
	for _, w := range s.old {
		if !w.ordered && at.Sub(w.stopped) >= s.drain {
			s.end(w, "drain")
		}
	}
}

// limit has the worker that serves take as many connections as old ones leave of the share, and an eighth at least.
func (s *seat) limit(at time.Time) {
	if s.serving == nil || at.Sub(s.connections.looked) < shareInterval || s.connections.limit == 0 {
		return
	}
	s.connections.looked = at
	left := s.connections.limit
	for _, w := range s.old {
		left -= w.connections()
	}
	left = max(left, s.connections.limit/8, 1)
	if left == s.connections.left {
		return
	}
	command := "set maxconn global " + strconv.Itoa(left)
	if _, err := talk(context.Background(), s.serving.socket, command, askTimeout); err == nil {
		s.connections.left = left
	}
}

// leave stops to listen, and ends the connections when their time to drain is over, or a time after the pod was to end.
// It returns true when no worker is left.
func (s *seat) leave(at time.Time) bool {
	if s.next != nil {
		_ = s.next.cmd.Process.Kill()
	}
	if s.serving != nil {
		s.retire(at)
	}
	s.endDrained(at)
	for _, w := range s.old {
		if !w.ordered && !s.leaving.IsZero() && at.Sub(s.leaving) >= s.terminate {
			s.end(w, "termination")
		}
	}
	s.answer("Success=0\n--\nthe namespace has no seat any more\n")
	return s.next == nil && len(s.old) == 0
}

// endAll ends the old workers with their connections.
func (s *seat) endAll() {
	for _, w := range s.old {
		if !w.ordered {
			s.end(w, "limit")
		}
	}
}

// call has the seat's goroutine call f. It returns false if the seat has ended.
func (s *seat) call(f func()) bool {
	select {
	case s.calls <- f:
		return true
	case <-s.over:
		return false
	}
}

// retire makes the serving worker an old one, which takes no new connections.
func (s *seat) retire(at time.Time) {
	_ = s.serving.cmd.Process.Signal(syscall.SIGUSR1) // it may have ended
	s.serving.stopped = at
	s.old, s.serving = append(s.old, s.serving), nil
}

// end ends a worker with its connections, which are counted.
func (s *seat) end(w *worker, cause string) {
	n := w.end()
	s.endings.WithLabelValues(cause).Add(float64(n))
	s.log.Info("a worker ends with its connections", "pid", w.pid(), "cause", cause, "connections", n)
}

// look asks the workers. A worker that starts takes over when it answers.
func (s *seat) look(at time.Time) {
	for _, w := range []*worker{s.next, s.serving} {
		if w == nil || w == s.serving && at.Sub(s.asked) < lookInterval {
			continue
		}
		if w == s.serving {
			s.asked = at
		}
		hash, err := ask(context.Background(), w.socket, askTimeout)
		switch {
		case err == nil && w == s.next:
			s.takeOver(at, hash)
			return
		case err == nil:
			s.answered, w.quiet = at, 0
		case w == s.next && !errors.Is(err, os.ErrDeadlineExceeded):
			// It does not listen yet.
		case w == s.serving && w.isFull():
			s.answered, w.quiet = at, 0
		case w.works():
			w.quiet = 1
		default:
			w.quiet++
		}
		since := w.started
		if w == s.serving {
			since = s.answered
		}
		if w.quiet >= quietLooks || at.Sub(since) >= busyTime {
			s.fail("hung", w, err)
			w.quiet = 0
			_ = w.cmd.Process.Kill()
		}
	}
}

// takeOver has the worker that started serve when it alone listens: both have the same listeners, and the one before
// would answer new clients with what was.
func (s *seat) takeOver(at time.Time, hash string) {
	s.answered = at
	link, partial := filepath.Join(s.dir, workerSocket), filepath.Join(s.dir, workerSocket+".partial")
	_ = os.Remove(partial)
	if err := errors.Join(os.Symlink(filepath.Base(s.next.socket), partial), os.Rename(partial, link)); err != nil {
		s.log.Error("the agent cannot reach the worker", "error", err)
	}
	if s.serving != nil {
		s.retire(at)
	}
	if n := len(s.old); n == 0 || !s.old[n-1].listens(at) {
		s.promote(at, hash)
	}
}

func (s *seat) fail(what string, w *worker, why any) {
	s.failures.WithLabelValues(what).Inc()
	s.log.Error("a worker of HAProxy failed", "what", what, "pid", w.pid(), "why", why)
}

// start starts a worker: with the configuration of the agent, or after that failed and nothing serves with the last
// good one.
func (s *seat) start(at time.Time) {
	config := configFile
	s.wanted, s.waiting = nil, append(s.waiting, s.wanted...)
	if s.serving == nil && s.attempts.tryGood {
		config = goodFile
	}
	text, err := os.ReadFile(filepath.Join(s.dir, config))
	if err != nil {
		s.attempts.tryGood = false
		if s.serving == nil { // the agent has yet to write one
			s.attempts.notBefore = at.Add(startLook)
			return
		}
		s.answer("Success=0\n--\n" + err.Error() + "\n")
		return
	}
	s.started++
	w, err := startWorker(s.program, s.dir, string(text), s.started, s.serving, s.ended)
	if err != nil {
		s.log.Error("cannot start HAProxy", "error", err)
		s.attempts.notBefore = at.Add(restartPause)
		s.answer("Success=0\n--\n" + err.Error() + "\n")
		return
	}
	s.next = w
}

// promote has the worker that started serve.
func (s *seat) promote(at time.Time, hash string) {
	s.serving, s.next, s.attempts.tryGood = s.next, nil, false
	if hash != s.present.hash {
		s.present = view{hash: hash, frontends: haproxy.Frontends(s.serving.config)}
	}
	s.present.refused = false
	s.connections = share{limit: maxConn(s.serving.config), looked: at.Add(-shareInterval)}
	s.connections.left = s.connections.limit
	s.log.Info(
		"a worker serves",
		"pid",
		s.serving.pid(),
		"configuration",
		hash,
		"old workers",
		len(s.old),
		"after",
		at.Sub(s.serving.started).String(),
	)
	if err := put(s.dir, goodFile, s.serving.config); err != nil {
		s.log.Error("cannot keep the configuration", "error", err)
	}
	s.serving.config = ""
	s.answer("Success=1\n")
	for i := 0; len(s.old)-i >= s.maxWorkers; i++ {
		if !s.old[i].ordered {
			s.end(s.old[i], "limit")
		}
	}
}

// answer answers those whose reload has an outcome.
func (s *seat) answer(text string) {
	for _, w := range s.waiting {
		w <- text
	}
	s.waiting = nil
}

func (s *seat) forget(w *worker) {
	at := time.Now()
	_ = os.Remove(w.socket)
	switch w {
	case s.next:
		s.next = nil
		s.fail("refused", w, w.cmd.ProcessState.String())
		s.answer("Success=0\n--\n" + w.words.String() + "\n")
		if s.serving == nil {
			s.present.refused = true
			s.attempts.tryGood, s.attempts.notBefore = !s.attempts.tryGood, at.Add(restartPause)
			if s.attempts.tryGood {
				s.attempts.notBefore = at
			}
		}
	case s.serving:
		s.serving = nil
		s.fail("died", w, w.cmd.ProcessState.String())
		if s.attempts.brief++; at.Sub(w.started) >= restartPause {
			s.attempts.brief = 0
		}
		if s.attempts.brief > maxBrief {
			s.attempts.notBefore = at.Add(restartPause)
		}
	default:
		s.old = slices.DeleteFunc(s.old, func(o *worker) bool { return o == w })
	}
}

// publish shows others what is served.
func (s *seat) publish(at time.Time) {
	shown := view{refused: s.present.refused}
	// While the pod ends the engine says so for all seats together: speakers keep what they know then.
	if !s.closed && at.Sub(s.answered) < graceTime {
		shown = s.present
	}
	s.shows(shown)
}

var maxConnPattern = regexp.MustCompile(`(?m)^ +maxconn ([0-9]+)$`)

// maxConn returns how many connections a configuration allows, 0 if it does not say that.
func maxConn(config string) int {
	if m := maxConnPattern.FindStringSubmatch(config); m != nil {
		n, _ := strconv.Atoi(m[1]) // HAProxy took it
		return n
	}
	return 0
}
