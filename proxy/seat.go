package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// These files are in the directory of a seat. Engine and agent share them.
const (
	// configFile is the configuration that the agent writes.
	configFile = "haproxy.cfg"
	// goodFile is the last configuration that a worker accepted.
	goodFile = "haproxy-good.cfg"
	// workerSocket is a link to the socket of the worker that serves.
	workerSocket = "worker.sock"
)

const (
	// lookInterval is the time between two checks of the worker that serves.
	lookInterval = 250 * time.Millisecond
	// startLook is the time between two checks of a worker that starts.
	startLook = 5 * time.Millisecond
	// shareInterval is the time between two counts of the connections of old workers.
	shareInterval = time.Second
	// maxIdleChecks is the number of checks in a row without an answer and without work after which a worker hangs.
	maxIdleChecks = 2
	// busyTime bounds the time for which a worker may work without an answer, as it does when it starts.
	busyTime = 30 * time.Second
	// maxBrief is the number of workers in a row that may die at once before there is a pause.
	maxBrief = 3
	// graceTime is the time for which the frontends stay when no worker answers. A dead worker is replaced sooner.
	graceTime = 2 * time.Second
	// handoverTime is the time for which the proxy still listens after it reported its end. By then no node sends new
	// connections.
	handoverTime = 5 * time.Second
)

// seatConfig configures a seat.
type seatConfig struct {
	log *slog.Logger
	// program is the path of HAProxy.
	program string
	// dir is the directory of the seat.
	dir string
	// maxWorkers bounds the workers, including the serving worker.
	maxWorkers int
	// drain is the time that the connections of an old worker have.
	drain time.Duration
	// terminate is the time that connections have when the pod ends.
	terminate time.Duration
	// show is called with the state of the seat.
	show func(seatView)

	failures   *prometheus.CounterVec
	endings    *prometheus.CounterVec
	oldWorkers prometheus.Gauge
}

// seatView is the state of a seat as others see it.
type seatView struct {
	// hash is the hash of the configuration that is served; "" for none.
	hash string
	// refused reports whether no configuration of the namespace starts.
	refused   bool
	frontends map[string]map[string]uint16
}

// seat runs the HAProxy of one namespace: the worker that serves, and older workers that still have connections. Only
// the goroutine of run uses it.
type seat struct {
	seatConfig
	calls chan func()
	ended chan *worker
	// over is closed at the end.
	over chan struct{}
	// serving is the worker that serves; nil for none.
	serving *worker
	// next is the worker that starts; nil for none.
	next *worker
	// old are the other workers, oldest first.
	old []*worker
	// wanted are the reloads that wait until a worker is started.
	wanted []chan<- string
	// waiting are the reloads that wait until the worker that was started serves.
	waiting []chan<- string
	// answeredAt is the time of the last answer of a worker.
	answeredAt time.Time
	// askedAt is the time at which the serving worker was last asked.
	askedAt     time.Time
	present     seatView
	connections share
	attempts    startAttempts
	// started counts the workers.
	started int
	// leaving is the time at which the pod was ordered to end; zero for never.
	leaving time.Time
	// closed reports whether the namespace has nothing proxied any more.
	closed bool
}

// share has the number of connections that a namespace may have.
type share struct {
	// limit is the number in the configuration of the worker that serves.
	limit int
	// left is the part of limit that old workers leave.
	left int
	// countedAt is the time of the last count of the connections of old workers.
	countedAt time.Time
}

// startAttempts has the state of the attempts to start a worker while none serves.
type startAttempts struct {
	// notBefore is the time from which the next attempt may be made.
	notBefore time.Time
	// tryGood reports whether the next attempt uses the last good configuration.
	tryGood bool
	// brief counts the workers in a row that died at once.
	brief int
}

// newSeat returns a seat without workers. run starts them.
func newSeat(c seatConfig) *seat {
	return &seat{
		seatConfig: c,
		calls:      make(chan func()),
		ended:      make(chan *worker),
		over:       make(chan struct{}),
	}
}

// run runs the workers. Once ctx is cancelled or closed is set, it ends when the last worker has ended. It ends at once
// when broken is closed.
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
			order = nil
			s.leaving = time.Now()
		case w := <-s.ended:
			s.handleEnd(w)
		case call := <-s.calls:
			call()
		case <-timer.C:
		}

		if s.step(time.Now()) {
			s.show(seatView{})
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

// step checks, starts and ends workers. It returns true when the last one has ended.
func (s *seat) step(at time.Time) (done bool) {
	handover := min(handoverTime, s.terminate/2)
	isLeaving := !s.leaving.IsZero() && at.Sub(s.leaving) >= handover
	if isLeaving || s.closed {
		return s.leave(at)
	}

	s.checkWorkers(at)
	mayStart := s.next == nil && !at.Before(s.attempts.notBefore)
	mustStart := s.serving == nil || len(s.wanted) > 0
	if mayStart && mustStart {
		s.start(at)
	}

	s.endDrained(at)
	s.limitConnections(at)
	return false
}

// endDrained ends the old workers whose time is over.
func (s *seat) endDrained(at time.Time) {
	for _, w := range s.old {
		if !w.isEnding && at.Sub(w.stopped) >= s.drain {
			s.end(w, "drain")
		}
	}
}

// limitConnections limits the worker that serves to the connections that old workers leave of the share, at least an
// eighth of it.
func (s *seat) limitConnections(at time.Time) {
	isDue := at.Sub(s.connections.countedAt) >= shareInterval
	if s.serving == nil || s.connections.limit == 0 || !isDue {
		return
	}

	s.connections.countedAt = at
	left := s.connections.limit
	for _, w := range s.old {
		left -= w.connections()
	}

	left = max(left, s.connections.limit/8, 1)
	if left == s.connections.left {
		return
	}

	command := "set maxconn global " + strconv.Itoa(left)
	_, err := talk(context.Background(), s.serving.socket, command, askTimeout)
	if err == nil {
		s.connections.left = left
	}
}

// leave stops listening. It ends the connections when their time to drain is over, or the time that they have when the
// pod ends. It returns true when no worker is left.
func (s *seat) leave(at time.Time) bool {
	if s.next != nil {
		_ = s.next.cmd.Process.Kill()
	}

	if s.serving != nil {
		s.retire(at)
	}

	s.endDrained(at)
	mustTerminate := !s.leaving.IsZero() && at.Sub(s.leaving) >= s.terminate
	for _, w := range s.old {
		if mustTerminate && !w.isEnding {
			s.end(w, "termination")
		}
	}

	s.answer("Success=0\n--\nthe namespace has no seat any more\n")
	return s.next == nil && len(s.old) == 0
}

// endAll ends the old workers with their connections.
func (s *seat) endAll() {
	for _, w := range s.old {
		if !w.isEnding {
			s.end(w, "limit")
		}
	}
}

// call calls f in the seat's goroutine. It returns false if the seat has ended.
func (s *seat) call(f func()) bool {
	select {
	case s.calls <- f:
		return true
	case <-s.over:
		return false
	}
}

// retire makes the serving worker an old one, which accepts no new connections.
func (s *seat) retire(at time.Time) {
	_ = s.serving.cmd.Process.Signal(syscall.SIGUSR1) // it may have ended
	s.serving.stopped = at
	s.old = append(s.old, s.serving)
	s.serving = nil
}

// end ends a worker with its connections, and counts these.
func (s *seat) end(w *worker, cause string) {
	n := w.end()
	s.endings.WithLabelValues(cause).Add(float64(n))
	s.log.Info("a worker ends with its connections", "pid", w.pid(), "cause", cause, "connections", n)
}

// start starts a worker with the configuration of the agent. If that failed and no worker serves, it uses the last good
// configuration.
func (s *seat) start(at time.Time) {
	s.waiting = append(s.waiting, s.wanted...)
	s.wanted = nil

	config := configFile
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

// answer sends the result to the reloads that wait for it.
func (s *seat) answer(text string) {
	for _, w := range s.waiting {
		w <- text
	}
	s.waiting = nil
}

// handleEnd removes a worker that has ended, and decides when the next one may start.
func (s *seat) handleEnd(w *worker) {
	at := time.Now()
	_ = os.Remove(w.socket)
	switch w {
	case s.next:
		s.next = nil
		s.fail("refused", w, w.cmd.ProcessState.String())
		s.answer("Success=0\n--\n" + w.output.String() + "\n")
		if s.serving == nil {
			s.present.refused = true
			s.attempts.alternate(at)
		}
	case s.serving:
		s.serving = nil
		s.fail("died", w, w.cmd.ProcessState.String())
		s.attempts.countDeath(at, w.started)
	default:
		s.old = slices.DeleteFunc(s.old, func(o *worker) bool {
			return o == w
		})
	}
}

// alternate decides about the next attempt after a failed attempt: at once with the last good configuration, or after a
// pause with the agent's.
func (a *startAttempts) alternate(at time.Time) {
	a.tryGood = !a.tryGood
	a.notBefore = at
	if !a.tryGood {
		a.notBefore = at.Add(restartPause)
	}
}

// countDeath counts the death of a serving worker that was started at the time started. After several brief ones the
// next attempt waits.
func (a *startAttempts) countDeath(at, started time.Time) {
	isBrief := at.Sub(started) < restartPause
	if isBrief {
		a.brief++
	} else {
		a.brief = 0
	}

	if a.brief > maxBrief {
		a.notBefore = at.Add(restartPause)
	}
}

// publish shows the state of the seat. If the pod ends, the engine reports that for all seats together, and speakers
// keep what they know.
func (s *seat) publish(at time.Time) {
	hasAnswered := at.Sub(s.answeredAt) < graceTime
	if hasAnswered && !s.closed {
		s.show(s.present)
	} else {
		s.show(seatView{refused: s.present.refused})
	}
}

// maxConnPattern matches the number of connections in a configuration.
var maxConnPattern = regexp.MustCompile(`(?m)^ +maxconn ([0-9]+)$`)

// maxConn returns the number of connections that a configuration allows; 0 if it has none.
func maxConn(config string) int {
	m := maxConnPattern.FindStringSubmatch(config)
	if m == nil {
		return 0
	}

	n, _ := strconv.Atoi(m[1]) // HAProxy accepted it
	return n
}
