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

// What engine and agent share in their directory, beside a directory for each namespace.
const (
	shared       = "/run/holdfast"
	masterSocket = "master.sock"
	// desiredFile is the agent's: a desired.
	desiredFile = "desired.json"
)

const (
	// maxSeats is the default of the namespaces with an HAProxy.
	maxSeats = 20
	// settleTime is how long a pod that starts waits for its namespaces before it is ready without them.
	settleTime = 30 * time.Second
)

// desired is what the agent wants of the engine.
type desired struct {
	// Namespaces have a seat. Their configurations are in their directories.
	Namespaces []string `json:"namespaces"`
	// Faults are what is wrong with Services, for speakers.
	Faults map[string]lb.Reason `json:"faults,omitempty"`
}

// engine is the parent of the HAProxies of all namespaces. Each namespace has a seat, with a goroutine and processes of
// its own, so that nothing that one does concerns another.
type engine struct {
	log              *slog.Logger
	program, dir     string
	listen           string
	maxSeats         int
	drain, terminate time.Duration

	failures, endings *prometheus.CounterVec
	oldWorkers        *prometheus.GaugeVec

	mu    sync.Mutex
	seats map[string]*taken
	// wanted is the last that the agent wrote, as text.
	wanted []byte
	desired
	// first is when the agent first wanted something, leaving when the pod was to end; zero for never.
	first, leaving time.Time
	// ready: each namespace served once, or was refused, or that took too long.
	ready   bool
	served  served
	changed chan struct{}
}

// taken is a seat that a namespace has.
type taken struct {
	*seat
	view
	// vacated: the namespace has nothing that is proxied any more.
	vacated bool
}

// served is what the workers serve; the answer to /frontends.
type served struct {
	Hash      string                       `json:"hash"`
	Frontends map[string]map[string]uint16 `json:"frontends"`
	// Faults are what is wrong with Services.
	Faults map[string]lb.Reason `json:"faults,omitempty"`
}

// nothing is served before the agent wrote anything, and when the proxy ends.
var nothing = served{Frontends: map[string]map[string]uint16{}}

func newEngine(log *slog.Logger) *engine {
	return &engine{
		log: log, program: program, dir: shared, maxSeats: maxSeats,
		seats: map[string]*taken{}, served: nothing, changed: make(chan struct{}),
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

func engineMain(args []string) int {
	var s daemon.Settings
	e := newEngine(nil)
	f := flag.NewFlagSet("holdfast-proxy engine", flag.ContinueOnError)
	f.StringVar(&e.listen, "listen", ":7950", "`address` of /frontends and /readyz")
	f.IntVar(&e.maxSeats, "max-namespaces", maxSeats, "most `namespaces` with an HAProxy")
	drain := f.Uint(
		"drain-seconds",
		3600,
		"`seconds` that a worker has for its connections after another one took its place",
	)
	terminate := f.Uint("termination-seconds", 60, "`seconds` that connections have when the pod ends")
	f.TextVar(&s.LogLevel, "log-level", slog.LevelInfo, "lowest `level` to log: debug, info, warn or error")
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
		e.loop(ctx, serving)
		return nil
	})
	return g.Wait()
}

// loop gives seats to the namespaces that the agent names, until ctx ends; then it waits for the seats.
func (e *engine) loop(ctx, serving context.Context) {
	var seats sync.WaitGroup
	defer seats.Wait()
	tick := time.NewTicker(startLook)
	defer tick.Stop()
	for {
		e.look(time.Now(), func(t *taken) {
			seats.Go(func() { t.run(ctx, serving.Done()) })
		})
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

// look reads what the agent wants, and starts and ends seats.
func (e *engine) look(at time.Time, start func(*taken)) {
	text, err := os.ReadFile(filepath.Join(e.dir, desiredFile))
	if err != nil {
		return // the agent has yet to write it
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !bytes.Equal(text, e.wanted) {
		var next desired
		if err := json.Unmarshal(text, &next); err != nil {
			e.log.Error("cannot read what the agent wants", "error", err)
			return
		}
		e.wanted, e.desired = text, next
	}
	if e.first.IsZero() {
		e.first = at
	}
	for name, t := range e.seats {
		if t.isOver() {
			delete(e.seats, name)
			label := prometheus.Labels{"namespace": name}
			e.oldWorkers.DeletePartialMatch(label)
			e.failures.DeletePartialMatch(label)
			e.endings.DeletePartialMatch(label)
		} else if wanted := slices.Contains(e.Namespaces, name); t.vacated == wanted {
			t.vacated = !wanted
			go t.call(func() { t.closed = e.isVacated(t) })
		}
	}
	for _, name := range e.Namespaces {
		if e.seats[name] != nil || !namespacePattern.MatchString(name) {
			continue
		}
		if len(e.seats) >= e.maxSeats {
			e.makeRoom()
			break
		}
		e.seats[name] = e.newSeat(name)
		start(e.seats[name])
	}
	e.combine(at)
}

func (e *engine) isVacated(t *taken) bool {
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

// makeRoom ends the connections of namespaces that have nothing proxied any more: another one needs a seat.
func (e *engine) makeRoom() {
	for _, t := range e.seats {
		if t.vacated {
			go t.call(t.endAll)
		}
	}
}

var namespacePattern = regexp.MustCompile("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")

// newSeat makes the seat of a namespace.
func (e *engine) newSeat(name string) *taken {
	t := &taken{}
	label := prometheus.Labels{"namespace": name}
	t.seat = newSeat(seatConfig{
		log: e.log.With("namespace", name), program: e.program, dir: filepath.Join(e.dir, name),
		maxWorkers: haproxy.MaxOld + 1, drain: e.drain, terminate: e.terminate,
		failures: e.failures.MustCurryWith(label), endings: e.endings.MustCurryWith(label),
		oldWorkers: e.oldWorkers.With(label),
		shows: func(v view) {
			e.mu.Lock()
			defer e.mu.Unlock()
			if v.hash != t.hash || v.refused != t.refused {
				t.view = v
				e.combine(time.Now())
			}
		},
	})
	return t
}

// leave shows that nothing is served any more.
func (e *engine) leave(at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leaving = at
	e.combine(at)
}

// combine tells those who wait what all seats serve together. Its caller holds the lock.
func (e *engine) combine(at time.Time) {
	next := nothing
	if e.leaving.IsZero() && !e.first.IsZero() {
		next = e.view()
		e.ready = e.ready || at.Sub(e.first) >= settleTime || !slices.ContainsFunc(e.Namespaces, e.starts)
	}
	if next.Hash != e.served.Hash {
		e.served = next
		close(e.changed)
		e.changed = make(chan struct{})
	}
}

// starts reports whether a namespace has neither been served yet nor been refused.
func (e *engine) starts(name string) bool {
	t := e.seats[name]
	return t == nil || t.hash == "" && !t.refused
}

// view is what all seats serve.
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
