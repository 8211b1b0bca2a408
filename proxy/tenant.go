package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/haproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

const (
	// busyInterval is the time between two checks whether another program has released a port.
	busyInterval = time.Second
	// probeTime is the time between two checks of ports while no worker answers: a worker that starts may have them.
	probeTime = 5 * time.Second
)

// tenant configures the HAProxy of one namespace. It has a loop of its own, so that a namespace whose HAProxy is slow,
// or refuses a file, does not delay others.
type tenant struct {
	log       *slog.Logger
	namespace string
	engine    haproxy.Engine
	// master is the socket of the engine.
	master string
	// pair returns the text of a pair by its digest; nil if none is known.
	pair    func(digest string) []byte
	reloads *prometheus.CounterVec
	// changed is called when the faults of the Services have changed.
	changed func()
	kick    func()
	stop    context.CancelFunc

	mu     sync.Mutex
	wanted haproxy.State
	// busy are the Services with a port on which another program listens.
	busy map[lb.Key]bool

	files
	ports
	edits
}

// files is the state of the files in the directory of the seat.
type files struct {
	writing sync.Mutex
	// gone reports whether the namespace has nothing proxied any more. Then no file may be written.
	gone bool
	// written is the content of the file of the configuration.
	written string
	// internal is the list State.Internal of the running worker.
	internal string
	// internalKnown reports whether internal is known.
	internalKnown bool
}

// ports are the ports on which another program listens.
type ports struct {
	taken map[uint16]bool
	// checkedAt is the time of the last check.
	checkedAt time.Time
}

// edits is the state of the changes that need a reload.
type edits struct {
	// inForce are the Services of the running worker, as this agent wrote them. They are valid while the worker shows
	// hash.
	inForce []haproxy.Service
	hash    string
	// refused is the hash of a configuration that the engine refused.
	refused string
	// last is the time at which the last reload ended; zero for never.
	last time.Time
	// since is the time from which an edit waits; zero if none waits.
	since time.Time
}

// newTenant returns the tenant of a namespace.
func newTenant(a *agent, namespace string) *tenant {
	t := &tenant{
		log:       a.log.With("namespace", namespace),
		namespace: namespace,
		engine:    a.engine,
		master:    filepath.Join(a.dir, masterSocket),
		pair:      a.certificates.text,
		reloads:   a.reloads.MustCurryWith(prometheus.Labels{"namespace": namespace}),
		changed:   a.kick,
		kick:      func() {},
		stop:      func() {},
		busy:      map[lb.Key]bool{},
	}
	t.engine.Directory = filepath.Join(a.dir, namespace)
	for _, result := range []string{"done", "refused"} {
		t.reloads.WithLabelValues(result)
	}

	return t
}

// begin starts the loop of the tenant in a group. It runs until ctx is cancelled or the tenant leaves.
func (t *tenant) begin(ctx context.Context, group *errgroup.Group) {
	loop := daemon.NewLoop(daemon.LoopConfig{
		Name: "proxy " + t.namespace,
		Log:  t.log,
		Sync: t.sync,
	})
	ctx, stop := context.WithCancel(ctx)
	t.kick = loop.Kick
	t.stop = stop
	group.Go(func() error { return loop.Run(ctx) })
}

// set sets the desired state.
func (t *tenant) set(s haproxy.State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wanted = s
	t.kick()
}

// leave ends the loop, and removes the files, which have keys.
func (t *tenant) leave() {
	t.stop()
	t.writing.Lock()
	defer t.writing.Unlock()
	t.gone = true
	clearSeat(t.engine.Directory)
}

// put writes a file of the seat.
func (t *tenant) put(name, text string) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.gone {
		return errGone
	}

	return put(t.engine.Directory, name, text)
}

// errGone is the error of writing a file after the tenant has left.
var errGone = errors.New("the namespace has nothing that is proxied any more")

// faults returns the faults of Services.
func (t *tenant) faults() map[string]lb.Reason {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[string]lb.Reason{}
	for key := range t.busy {
		out[key.String()] = lb.ProxyPortTaken
	}

	return out
}

// sync updates the worker: endpoints and internal addresses at once, and everything else by a reload when one is due.
func (t *tenant) sync(ctx context.Context) (again time.Duration, err error) {
	t.mu.Lock()
	want := t.wanted
	t.mu.Unlock()
	running, err := t.running(ctx)
	if t.hash != running {
		t.inForce = nil
		t.hash = ""
	}

	if t.dropTakenPorts(&want, err == nil) {
		again = busyInterval
	}

	c := want.Config()
	if err != nil { // no worker answers; the engine starts one with the file
		return lookInterval, t.write(want, c)
	}

	if c.Hash == running {
		t.inForce = want.Services
		t.hash = running
		t.since = time.Time{}
		next, err := t.update(ctx, want, c)
		return daemon.Sooner(again, next), err
	}

	next, err := t.reloadWhenDue(ctx, want, c)
	return daemon.Sooner(again, next), err
}

// dropTakenPorts removes the ports from the Services on which another program listens, usually the HAProxy of the
// namespace that had the node port before. It reports whether there are any. isServing reports whether a worker
// answers.
func (t *tenant) dropTakenPorts(want *haproxy.State, isServing bool) bool {
	isDue := t.written == "" || time.Since(t.checkedAt) >= probeTime
	if isServing || isDue {
		t.checkedAt = time.Now()
		t.taken = t.takenPorts(want.Services)
	}

	busy := map[lb.Key]bool{}
	services := slices.Clone(want.Services)
	for i, s := range services {
		services[i].Ports = slices.DeleteFunc(slices.Clone(s.Ports), func(p haproxy.Port) bool {
			return t.taken[p.Listen]
		})
		if len(services[i].Ports) < len(s.Ports) {
			busy[s.Key] = true
		}
	}

	want.Services = services
	t.mu.Lock()
	isUnchanged := maps.Equal(busy, t.busy)
	t.busy = busy
	t.mu.Unlock()

	if !isUnchanged {
		t.log.Info("ports of Services on which another program listens are not served", "services", len(busy))
		t.changed()
	}

	return len(busy) > 0
}

// takenPorts returns the ports on which a program listens that is neither the serving worker nor the last worker that
// served.
func (t *tenant) takenPorts(services []haproxy.Service) map[uint16]bool {
	own := map[uint16]bool{}
	text, _ := os.ReadFile(filepath.Join(t.engine.Directory, goodFile)) // without the file there is none
	for _, ports := range haproxy.Frontends(string(text)) {
		for _, listen := range ports {
			own[listen] = true
		}
	}

	taken := map[uint16]bool{}
	for _, s := range services {
		for _, p := range s.Ports {
			if !own[p.Listen] && isTaken(p.Listen) {
				taken[p.Listen] = true
			}
		}
	}

	return taken
}

// isTaken reports whether another program listens on a port.
func isTaken(port uint16) bool {
	l, err := net.Listen("tcp", ":"+strconv.Itoa(int(port)))
	if err != nil {
		return true
	}

	l.Close()
	return false
}

// reloadWhenDue reloads if a reload is due. Otherwise it updates the endpoints of the running worker.
func (t *tenant) reloadWhenDue(ctx context.Context, want haproxy.State, c haproxy.Config) (time.Duration, error) {
	began := time.Now()
	old, err := t.countOld(ctx)
	if err != nil {
		return 0, err
	}

	wasRefused := c.Hash == t.refused && began.Sub(t.last) < retryTime
	if wasRefused {
		again, err := t.refresh(ctx, want)
		return daemon.Sooner(again, 5*time.Second), err
	}

	if t.since.IsZero() {
		t.since = began
	}

	wait := haproxy.Due(old, t.last, t.since).Sub(began)
	if wait > 0 {
		again, err := t.refresh(ctx, want)
		return daemon.Sooner(again, min(wait, time.Second)), err // an old worker may end
	}
	if err := t.reload(ctx, want, c); err != nil {
		return 0, err
	}

	t.since = time.Time{}
	return time.Millisecond, nil // endpoints may have changed since
}

// refresh updates the endpoints of the running worker while an edit waits.
func (t *tenant) refresh(ctx context.Context, want haproxy.State) (time.Duration, error) {
	if t.hash == "" {
		return 0, nil
	}

	want.Services = haproxy.Refresh(t.inForce, want.Services)
	c := want.Config()
	if c.Hash != t.hash {
		return 0, nil // the settings of the engine changed too
	}

	return t.update(ctx, want, c)
}

// update updates the endpoints and internal addresses of the running worker, without a reload, and then the file.
func (t *tenant) update(ctx context.Context, want haproxy.State, c haproxy.Config) (again time.Duration, err error) {
	if err := t.replaceInternal(ctx, want); err != nil {
		return 0, err
	}

	commands, err := t.commands(ctx, want)
	if len(commands) > 0 {
		for line := range slices.Chunk(commands, commandsInLine) {
			_, err = t.talk(ctx, strings.Join(line, ";"))
			if err != nil {
				return 0, err
			}
		}

		commands, err = t.commands(ctx, want)
	}
	if err != nil {
		return 0, err
	}

	if !haproxy.Settled(commands) {
		first := commands[:min(len(commands), 5)]
		t.log.Warn("the engine did not take a change of endpoints: it gets it by a reload", "commands", first)
		return 0, t.reload(ctx, want, c)
	}

	if len(commands) > 0 {
		again = closedInterval
	}

	return again, t.write(want, c)
}

// replaceInternal updates the addresses of nodes and pods in the running worker. It writes the file first, since a
// worker that starts meanwhile reads it.
func (t *tenant) replaceInternal(ctx context.Context, want haproxy.State) error {
	list := want.InternalList()
	if t.internalKnown && list == t.internal {
		return nil
	}
	if err := t.put(haproxy.InternalFile, list); err != nil {
		return err
	}

	answer, err := t.talk(ctx, want.Prepare())
	if err != nil {
		return err
	}

	version := haproxy.ParsePrepared(answer)
	if version != "" {
		for _, line := range want.Replace(version) {
			_, err := t.talk(ctx, line)
			if err != nil {
				return err
			}
		}
	}

	t.internal = list
	t.internalKnown = true
	return nil
}

// commands returns the commands that give the running worker the wanted servers.
func (t *tenant) commands(ctx context.Context, want haproxy.State) ([]string, error) {
	text, err := t.talk(ctx, "show servers state")
	if err != nil {
		return nil, err
	}

	servers, err := haproxy.ParseServers(text)
	if err != nil {
		return nil, err
	}

	return want.Commands(servers), nil
}

// reload makes a new worker take over with a configuration.
func (t *tenant) reload(ctx context.Context, want haproxy.State, c haproxy.Config) error {
	states, err := t.talk(ctx, "show servers state")
	if err != nil {
		return err
	}

	// The new worker begins with the results of the checks.
	statesErr := t.put(haproxy.StatesFile, strings.TrimLeft(states, "\n"))
	writeErr := t.write(want, c)
	if err := errors.Join(statesErr, writeErr); err != nil {
		return err
	}

	began := time.Now()
	answer, err := t.command(ctx, "reload")
	if err != nil {
		return err
	}

	running, err := t.running(ctx)
	if err != nil {
		return err
	}

	t.last = time.Now()
	if running != c.Hash {
		t.reloads.WithLabelValues("refused").Inc()
		t.log.Error("the engine refused a configuration: the old one stays in force",
			"configuration", c.Hash, "answer", answer)
		t.refused = c.Hash // the next run restores the file
		return nil
	}

	t.reloads.WithLabelValues("done").Inc()
	t.log.Info("the engine has another configuration",
		"configuration", c.Hash, "services", len(want.Services), "after", time.Since(began))
	t.inForce = want.Services
	t.hash = running
	t.refused = ""
	t.clean(c)
	return nil
}

// talk sends a line of commands to the running worker, and returns its answer.
func (t *tenant) talk(ctx context.Context, text string) (string, error) {
	socket := filepath.Join(t.engine.Directory, workerSocket)
	return talk(ctx, socket, text, talkTime)
}

// running returns the hash of the configuration of the running worker.
func (t *tenant) running(ctx context.Context) (string, error) {
	socket := filepath.Join(t.engine.Directory, workerSocket)
	return ask(ctx, socket, talkTime)
}

// command sends a command for this namespace to the engine, and returns its answer.
func (t *tenant) command(ctx context.Context, verb string) (string, error) {
	return talk(ctx, t.master, verb+" "+t.namespace, commandTime)
}

// countOld returns the number of old workers of the namespace.
func (t *tenant) countOld(ctx context.Context) (int, error) {
	text, err := t.command(ctx, "old")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(text))
}
