package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/haproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

// Engine and agent share these files. Beside them there is a directory for each namespace.
const (
	// shared is the directory.
	shared = "/run/holdfast"
	// masterSocket is the engine's socket for commands of the agent.
	masterSocket = "master.sock"
	// desiredFile has the desired state, which the agent writes.
	desiredFile = "desired.json"
)

const (
	// maxSeats is the default of the maximum number of namespaces with an HAProxy.
	maxSeats = 20
	// settleTime is the time for which a pod that starts waits for its namespaces before it is ready without them.
	settleTime = 30 * time.Second
)

// desiredSeats is the desired state of the engine, as the agent writes it.
type desiredSeats struct {
	// Namespaces have a seat. Their configurations are in their directories.
	Namespaces []string `json:"namespaces"`
	// Faults are the faults of Services, for speakers.
	Faults map[string]lb.Reason `json:"faults,omitempty"`
}

// engine is the parent of the HAProxies of all namespaces. Each namespace has a seat, with a goroutine and processes of
// its own, so that namespaces do not affect each other.
type engine struct {
	log *slog.Logger
	// program is the path of HAProxy.
	program string
	// dir is the directory that it shares with the agent.
	dir string
	// listen is the address of /frontends and /readyz.
	listen   string
	maxSeats int
	// drain and terminate are as in seatConfig.
	drain     time.Duration
	terminate time.Duration

	failures   *prometheus.CounterVec
	endings    *prometheus.CounterVec
	oldWorkers *prometheus.GaugeVec

	mu    sync.Mutex
	seats map[string]*namespaceSeat
	// wanted is the text that desiredSeats was read from.
	wanted []byte
	desiredSeats
	// first is the time at which the agent first wrote a desired state; zero for never.
	first time.Time
	// leaving is the time at which the pod was ordered to end; zero for never.
	leaving time.Time
	// ready reports whether each namespace was served once or refused, or that took too long.
	ready   bool
	served  served
	changed chan struct{}
}

// namespaceSeat is the seat of a namespace, with its last view.
type namespaceSeat struct {
	*seat
	seatView
	// vacated reports whether the namespace has nothing proxied any more.
	vacated bool
}

// served is the answer to /frontends.
type served struct {
	// Hash changes with the answer.
	Hash string `json:"hash"`
	// Frontends are the ports on which the workers listen, by Service and its port.
	Frontends map[string]map[string]uint16 `json:"frontends"`
	// Faults are the faults of Services.
	Faults map[string]lb.Reason `json:"faults,omitempty"`
}

// nothing is the answer before the agent has written a desired state, and when the proxy ends.
var nothing = served{Frontends: map[string]map[string]uint16{}}

// newEngine returns an engine without seats.
func newEngine(log *slog.Logger) *engine {
	return &engine{
		log:      log,
		program:  program,
		dir:      shared,
		maxSeats: maxSeats,
		seats:    map[string]*namespaceSeat{},
		served:   nothing,
		changed:  make(chan struct{}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_proxy_failures_total",
			Help: "Workers of HAProxy that died, hung, or did not start (refused): of which namespace, and by what.",
		}, []string{"namespace", "what"}),
		endings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_proxy_ended_connections_total",
			Help: "About how many open connections ended with their worker: after the time to " +
				"drain, because there were too many workers (limit), or with the pod (termination).",
		}, []string{"namespace", "cause"}),
		oldWorkers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_proxy_old_workers",
			Help: "Workers of HAProxy whose place another one took, and whose connections last.",
		}, []string{"namespace"}),
	}
}

// engineMain runs the engine with the arguments of the command line, and returns the exit code.
func engineMain(args []string) int {
	var s daemon.Settings
	e := newEngine(nil)
	f := flag.NewFlagSet("holdfast-proxy engine", flag.ContinueOnError)
	f.StringVar(&e.listen, "listen", ":7950", "`address` of /frontends and /readyz")
	f.IntVar(&e.maxSeats, "max-namespaces", maxSeats, "most `namespaces` with an HAProxy")
	drain := f.Uint("drain-seconds", 3600,
		"`seconds` that a worker has for its connections after another one took its place")
	terminate := f.Uint("termination-seconds", 60, "`seconds` that connections have when the pod ends")
	f.TextVar(&s.LogLevel, "log-level", slog.LevelInfo, "lowest `level` to log: debug, info, warn or error")

	parse := func() error {
		if err := f.Parse(args); err != nil {
			return err
		}
		if f.NArg() > 0 {
			return errors.New("want no further argument")
		}

		e.drain = time.Duration(*drain) * time.Second
		e.terminate = time.Duration(*terminate) * time.Second
		return nil
	}
	return daemon.Main("holdfast-proxy", &s, parse, func(ctx context.Context, log *slog.Logger) error {
		e.log = log
		return e.Run(ctx)
	})
}

// Run serves until ctx is cancelled, and then as long as connections last.
func (e *engine) Run(ctx context.Context) error {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, serving := errgroup.WithContext(serving)
	g.Go(func() error {
		return daemon.Serve(serving, e.listen, e.handler(), nil)
	})
	g.Go(func() error { return e.serveCommands(serving) })
	g.Go(func() error {
		defer stop()
		e.loop(ctx, serving)
		return nil
	})
	return g.Wait()
}

// loop gives seats to the namespaces that the agent names, until ctx is cancelled. Then it waits for the seats.
func (e *engine) loop(ctx, serving context.Context) {
	var seats sync.WaitGroup
	defer seats.Wait()
	tick := time.NewTicker(startLook)
	defer tick.Stop()

	start := func(t *namespaceSeat) {
		seats.Go(func() {
			t.run(ctx, serving.Done())
		})
	}
	for {
		e.resync(time.Now(), start)
		select {
		case <-serving.Done():
			return
		case <-ctx.Done():
			e.log.Info("the proxy ends: new connections go elsewhere", "within", e.terminate.String())
			e.leave(time.Now())
			return
		case <-tick.C:
			tick.Reset(lookInterval)
		}
	}
}

// resync reads the desired state, and starts and ends seats.
func (e *engine) resync(at time.Time, start func(*namespaceSeat)) {
	text, err := os.ReadFile(filepath.Join(e.dir, desiredFile))
	if err != nil {
		return // the agent has not written it yet
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	if !bytes.Equal(text, e.wanted) {
		var next desiredSeats
		if err := json.Unmarshal(text, &next); err != nil {
			e.log.Error("cannot read the desired state", "error", err)
			return
		}

		e.wanted = text
		e.desiredSeats = next
	}

	if e.first.IsZero() {
		e.first = at
	}

	e.closeSeats()
	e.openSeats(start)
	e.combine(at)
}

// closeSeats removes the seats that have ended, and closes the seats of namespaces that are no longer wanted. A closed
// seat is opened again if its namespace is wanted before it ends. The caller holds mu.
func (e *engine) closeSeats() {
	for name, t := range e.seats {
		if t.isOver() {
			delete(e.seats, name)
			label := prometheus.Labels{"namespace": name}
			e.oldWorkers.DeletePartialMatch(label)
			e.failures.DeletePartialMatch(label)
			e.endings.DeletePartialMatch(label)
			continue
		}

		isWanted := slices.Contains(e.Namespaces, name)
		if t.vacated == isWanted {
			t.vacated = !isWanted
			go t.call(func() {
				t.closed = e.isVacated(t)
			})
		}
	}
}

// openSeats starts a seat for each namespace without one, as long as there are seats. The caller holds mu.
func (e *engine) openSeats(start func(*namespaceSeat)) {
	for _, name := range e.Namespaces {
		if e.seats[name] != nil || !namespacePattern.MatchString(name) {
			continue
		}

		if len(e.seats) >= e.maxSeats {
			e.makeRoom()
			break
		}

		t := e.newSeat(name)
		e.seats[name] = t
		start(t)
	}
}

// isVacated reports whether the namespace of a seat has nothing proxied any more.
func (e *engine) isVacated(t *namespaceSeat) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return t.vacated
}

// isOver reports whether the seat has no process any more.
func (s *seat) isOver() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

// makeRoom ends the connections of namespaces that have nothing proxied any more, because another one needs a seat.
func (e *engine) makeRoom() {
	for _, t := range e.seats {
		if t.vacated {
			go t.call(t.endAll)
		}
	}
}

// namespacePattern matches the names of namespaces.
var namespacePattern = regexp.MustCompile("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")

// newSeat returns the seat of a namespace.
func (e *engine) newSeat(name string) *namespaceSeat {
	t := &namespaceSeat{}
	label := prometheus.Labels{"namespace": name}
	t.seat = newSeat(seatConfig{
		log:        e.log.With("namespace", name),
		program:    e.program,
		dir:        filepath.Join(e.dir, name),
		maxWorkers: haproxy.MaxOld + 1,
		drain:      e.drain,
		terminate:  e.terminate,
		failures:   e.failures.MustCurryWith(label),
		endings:    e.endings.MustCurryWith(label),
		oldWorkers: e.oldWorkers.With(label),
		show: func(v seatView) {
			e.mu.Lock()
			defer e.mu.Unlock()
			hasChanged := v.hash != t.hash || v.refused != t.refused
			if hasChanged {
				t.seatView = v
				e.combine(time.Now())
			}
		},
	})
	return t
}

// leave reports from then on that nothing is served.
func (e *engine) leave(at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leaving = at
	e.combine(at)
}

// combine updates the answer to /frontends from the views of all seats. The caller holds mu.
func (e *engine) combine(at time.Time) {
	next := nothing
	isServing := e.leaving.IsZero() && !e.first.IsZero()
	if isServing {
		next = e.view()
		hasWaited := at.Sub(e.first) >= settleTime
		haveStarted := !slices.ContainsFunc(e.Namespaces, e.isStarting)
		e.ready = e.ready || hasWaited || haveStarted
	}

	if next.Hash != e.served.Hash {
		e.served = next
		close(e.changed)
		e.changed = make(chan struct{})
	}
}

// isStarting reports whether a namespace is neither served nor refused yet.
func (e *engine) isStarting(name string) bool {
	t := e.seats[name]
	if t == nil {
		return true
	}
	return t.hash == "" && !t.refused
}

// view returns the answer to /frontends from the views of all seats.
func (e *engine) view() served {
	out := served{Frontends: map[string]map[string]uint16{}, Faults: e.Faults}
	faults, _ := json.Marshal(e.Faults) // texts
	text := string(faults)
	for _, name := range slices.Sorted(maps.Keys(e.seats)) {
		maps.Copy(out.Frontends, e.seats[name].frontends)
		text += "\n" + name + " " + e.seats[name].hash
	}

	out.Hash = haproxy.Digest(text)
	return out
}
