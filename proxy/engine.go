package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/haproxy"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

// What engine and agent share in their directory.
const (
	shared       = "/run/holdfast"
	configFile   = "haproxy.cfg"
	goodFile     = "haproxy-good.cfg" // the last that a worker took
	workerSocket = "worker.sock"      // leads to the serving worker's own
	masterSocket = "master.sock"
	faultsFile   = "faults.json" // of Secrets, by Service
)

const (
	// lookInterval is the time between two looks at the worker that serves, startLook while another one starts.
	lookInterval, startLook = 250 * time.Millisecond, 5 * time.Millisecond
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

// engine is the parent of HAProxy's workers: of the worker that serves, and of older ones, whose connections last. One
// goroutine has it.
type engine struct {
	log              *slog.Logger
	program, dir     string
	listen           string
	maxWorkers       int
	drain, terminate time.Duration

	calls chan func()
	ended chan *worker
	// serving is nil while none does, next while none starts.
	serving, next *worker
	old           []*worker // oldest first
	// wanted are the reloads that wait for a start, waiting those that wait for what is starting.
	wanted, waiting []chan<- string
	// answered is when a worker last did, asked when the serving one was asked.
	answered, asked time.Time
	hash            string
	frontends       map[string]map[string]uint16
	notBefore       time.Time // another attempt to start one
	tryGood         bool
	brief           int       // workers in a row that died at once
	started         int       // workers
	leaving         time.Time // zero for not

	failures, endings *prometheus.CounterVec
	oldWorkers        prometheus.Gauge

	mu      sync.Mutex
	served  served
	changed chan struct{}
}

// served is what the running worker serves; the answer to /frontends.
type served struct {
	Hash      string                       `json:"hash"`
	Frontends map[string]map[string]uint16 `json:"frontends"`
	// Faults are what is wrong with Services' Secrets.
	Faults json.RawMessage `json:"faults,omitempty"`
}

// nothing is served while no worker answers, or when the proxy ends.
var nothing = served{Frontends: map[string]map[string]uint16{}}

func newEngine(log *slog.Logger) *engine {
	return &engine{
		log: log, program: program, dir: shared, maxWorkers: haproxy.MaxOld + 1,
		calls: make(chan func()), ended: make(chan *worker), served: nothing, changed: make(chan struct{}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_proxy_failures_total",
			Help: "Workers of HAProxy that died, hung, or did not start (refused): by what.",
		}, []string{"what"}),
		endings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_proxy_ended_connections_total",
			Help: "About how many open connections ended with their worker: after the time to " +
				"drain, because there were too many workers (limit), or with the pod (termination).",
		}, []string{"cause"}),
		oldWorkers: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_proxy_old_workers",
			Help: "Workers of HAProxy whose place another one took, and whose connections last.",
		}),
	}
}

func engineMain(args []string) int {
	var s daemon.Settings
	e := newEngine(nil)
	f := flag.NewFlagSet("holdfast-proxy engine", flag.ContinueOnError)
	f.StringVar(&e.listen, "listen", ":7950", "`address` of /frontends, /readyz and /metrics")
	drain := f.Uint(
		"drain-seconds",
		3600,
		"`seconds` that a worker has for its connections after another one took its place",
	)
	terminate := f.Uint("termination-seconds", 60, "`seconds` that connections have when the pod ends")
	f.TextVar(&s.LogLevel, "log-level", slog.LevelInfo, "least `level` logged: debug, info, warn or error")
	return daemon.Main("holdfast-proxy", &s, func() error {
		if err := f.Parse(args); err != nil {
			return err
		}
		if f.NArg() > 0 {
			return errors.New("want no further argument")
		}
		e.drain, e.terminate = time.Duration(*drain)*time.Second, time.Duration(*terminate)*time.Second
		return nil
	}, func(ctx context.Context, log *slog.Logger) error {
		e.log = log
		return e.Run(ctx)
	})
}

// Run serves until ctx is cancelled, and then for as long as connections last.
func (e *engine) Run(ctx context.Context) error {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, serving := errgroup.WithContext(serving)
	g.Go(func() error { return daemon.Serve(serving, e.listen, e.handler(), nil) })
	g.Go(func() error { return e.serveCommands(serving) })
	g.Go(func() error {
		defer stop()
		return e.loop(ctx, serving.Done())
	})
	return g.Wait()
}

// loop has the workers. It ends with them after ctx, or at once when broken is closed.
func (e *engine) loop(ctx context.Context, broken <-chan struct{}) error {
	order := ctx.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-broken:
			return nil
		case <-order:
			order, e.leaving = nil, time.Now()
			e.log.Info("the proxy ends: new connections go elsewhere", "within", e.terminate.String())
		case w := <-e.ended:
			e.forget(w)
		case call := <-e.calls:
			call()
		case <-timer.C:
		}
		if e.step(time.Now()) {
			return nil
		}
		e.publish(time.Now())
		e.oldWorkers.Set(float64(len(e.old)))
		pause := lookInterval
		if e.next != nil || e.serving == nil {
			pause = startLook
		}
		timer.Reset(pause)
	}
}

// step does what is to be done. It returns true at the end.
func (e *engine) step(at time.Time) (done bool) {
	if !e.leaving.IsZero() && at.Sub(e.leaving) >= min(handoverTime, e.terminate/2) {
		return e.leave(at)
	}
	e.look(at)
	if e.next == nil && !at.Before(e.notBefore) && (e.serving == nil || len(e.wanted) > 0) {
		e.start(at)
	}
	for _, w := range e.old {
		if !w.ordered && at.Sub(w.stopped) >= e.drain {
			e.end(w, "drain")
		}
	}
	return false
}

// leave stops to listen, and ends the connections when their time is over. It returns true when no worker is left.
func (e *engine) leave(at time.Time) bool {
	if e.next != nil {
		_ = e.next.cmd.Process.Kill()
	}
	if e.serving != nil {
		e.retire(at)
	}
	for _, w := range e.old {
		if !w.ordered && at.Sub(e.leaving) >= e.terminate {
			e.end(w, "termination")
		}
	}
	return e.next == nil && len(e.old) == 0
}

// retire makes the serving worker an old one, which takes no new connections.
func (e *engine) retire(at time.Time) {
	_ = e.serving.cmd.Process.Signal(syscall.SIGUSR1) // it may have ended
	e.serving.stopped = at
	e.old, e.serving = append(e.old, e.serving), nil
}

// end ends a worker with its connections, which are counted.
func (e *engine) end(w *worker, cause string) {
	n := w.end()
	e.endings.WithLabelValues(cause).Add(float64(n))
	e.log.Info("a worker ends with its connections", "pid", w.pid(), "cause", cause, "connections", n)
}

// look asks the workers. A worker that starts takes over when it answers.
func (e *engine) look(at time.Time) {
	for _, w := range []*worker{e.next, e.serving} {
		if w == nil || w == e.serving && at.Sub(e.asked) < lookInterval {
			continue
		}
		since := w.started
		if w == e.serving {
			e.asked, since = at, e.answered
		}
		hash, err := ask(context.Background(), w.socket, askTimeout)
		switch {
		case err == nil && w == e.next:
			e.takeOver(at, hash)
			return
		case err == nil:
			e.answered, w.quiet = at, 0
		case w == e.next && !errors.Is(err, os.ErrDeadlineExceeded):
			// It does not listen yet.
		case w.works():
			w.quiet = 1
		default:
			w.quiet++
		}
		if w.quiet >= quietLooks || at.Sub(since) >= busyTime {
			e.fail("hung", w, err)
			w.quiet = 0
			_ = w.cmd.Process.Kill()
		}
	}
}

// takeOver has the worker that started serve when it alone listens: both have the same listeners, and the one before
// would answer new clients with what was.
func (e *engine) takeOver(at time.Time, hash string) {
	e.answered = at
	link, partial := filepath.Join(e.dir, workerSocket), filepath.Join(e.dir, workerSocket+".partial")
	_ = os.Remove(partial)
	if err := errors.Join(os.Symlink(filepath.Base(e.next.socket), partial), os.Rename(partial, link)); err != nil {
		e.log.Error("the agent cannot reach the worker", "error", err)
	}
	if e.serving != nil {
		e.retire(at)
	}
	if n := len(e.old); n == 0 || !e.old[n-1].listens(at) {
		e.promote(at, hash)
	}
}

func (e *engine) fail(what string, w *worker, why any) {
	e.failures.WithLabelValues(what).Inc()
	e.log.Error("a worker of HAProxy failed", "what", what, "pid", w.pid(), "why", why)
}

// start starts a worker: with the configuration of the agent, or after that failed and nothing serves with the last
// good one.
func (e *engine) start(at time.Time) {
	config := configFile
	e.wanted, e.waiting = nil, append(e.waiting, e.wanted...)
	if e.serving == nil && e.tryGood {
		config = goodFile
	}
	text, err := os.ReadFile(filepath.Join(e.dir, config))
	if err != nil {
		e.tryGood = false
		if e.serving == nil { // the agent has yet to write one
			e.notBefore = at.Add(startLook)
			return
		}
		e.answer("Success=0\n--\n" + err.Error() + "\n")
		return
	}
	e.started++
	w, err := startWorker(e.program, e.dir, string(text), e.started, e.serving, e.ended)
	if err != nil {
		e.log.Error("cannot start HAProxy", "error", err)
		e.notBefore = at.Add(restartPause)
		e.answer("Success=0\n--\n" + err.Error() + "\n")
		return
	}
	e.next = w
}

// promote has the worker that started serve.
func (e *engine) promote(at time.Time, hash string) {
	e.serving, e.next, e.tryGood = e.next, nil, false
	if hash != e.hash {
		e.hash, e.frontends = hash, haproxy.Frontends(e.serving.config)
	}
	e.log.Info(
		"a worker serves",
		"pid",
		e.serving.pid(),
		"configuration",
		hash,
		"old workers",
		len(e.old),
		"after",
		at.Sub(e.serving.started).String(),
	)
	if err := put(e.dir, goodFile, e.serving.config); err != nil {
		e.log.Error("cannot keep the configuration", "error", err)
	}
	e.serving.config = ""
	e.answer("Success=1\n")
	for i := 0; len(e.old)-i >= e.maxWorkers; i++ {
		if !e.old[i].ordered {
			e.end(e.old[i], "limit")
		}
	}
}

// answer answers those whose reload has an outcome.
func (e *engine) answer(text string) {
	for _, w := range e.waiting {
		w <- text
	}
	e.waiting = nil
}

func (e *engine) forget(w *worker) {
	at := time.Now()
	_ = os.Remove(w.socket)
	switch w {
	case e.next:
		e.next = nil
		e.fail("refused", w, w.cmd.ProcessState.String())
		e.answer("Success=0\n--\n" + w.words.String() + "\n")
		if e.serving == nil {
			e.tryGood, e.notBefore = !e.tryGood, at.Add(restartPause)
			if e.tryGood {
				e.notBefore = at
			}
		}
	case e.serving:
		e.serving = nil
		e.fail("died", w, w.cmd.ProcessState.String())
		if e.brief++; at.Sub(w.started) >= restartPause {
			e.brief = 0
		}
		if e.brief > maxBrief {
			e.notBefore = at.Add(restartPause)
		}
	default:
		e.old = slices.DeleteFunc(e.old, func(o *worker) bool { return o == w })
	}
}

// publish tells those who wait what is served.
func (e *engine) publish(at time.Time) {
	next := nothing
	if e.leaving.IsZero() && at.Sub(e.answered) < graceTime && e.hash != "" {
		next = served{Hash: e.hash, Frontends: e.frontends}
		if faults, _ := os.ReadFile(filepath.Join(e.dir, faultsFile)); len(
			faults,
		) > 0 { // without the file there are none
			next.Hash, next.Faults = e.hash+"-"+haproxy.Digest(string(faults)), faults
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if next.Hash != e.served.Hash {
		e.served = next
		close(e.changed)
		e.changed = make(chan struct{})
	}
}
