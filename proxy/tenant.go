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
)

const (
	// busyInterval is how often a tenant looks whether a port is free that another program has.
	busyInterval = time.Second
	// probeTime is the time between two looks at ports while no worker answers: a worker that starts may have them.
	probeTime = 5 * time.Second
)

// tenant gives the HAProxy of one namespace its configuration. It has a loop of its own, so that a namespace whose
// HAProxy is slow, or refuses a file, keeps no other one waiting.
type tenant struct {
	log       *slog.Logger
	namespace string
	engine    haproxy.Engine
	// master is the socket of the engine.
	master string
	// pair returns the text of a pair by its digest, nil if none is known.
	pair    func(digest string) []byte
	reloads *prometheus.CounterVec
	// changed is called when what is wrong with the Services has changed.
	changed func()
	kick    func()
	stop    context.CancelFunc

	mu     sync.Mutex
	wanted haproxy.State
	// busy are the Services that lack a port, which another program has.
	busy map[lb.Key]bool

	files
	ports
	edits
}

// files are those in the directory of the seat.
type files struct {
	writing sync.Mutex
	// gone: the namespace has nothing that is proxied any more, and no file is to come back.
	gone bool
	// written is what is in the file of the configuration.
	written string
	// internal is State.Internal as the running worker has it, once that is known.
	internal      string
	internalKnown bool
}

// ports are those on which another program listens, by a look at a time.
type ports struct {
	taken  map[uint16]bool
	looked time.Time
}

// edits are the changes that only another worker can make.
type edits struct {
	// inForce are the Services of the running worker as far as this agent knows; valid while it shows the hash.
	inForce []haproxy.Service
	hash    string
	// refused is the hash of a configuration that the engine did not take.
	refused string
	// last is when the last reload ended, and since when an edit waits; zero for none.
	last, since time.Time
}

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

// set names what the cluster wants.
func (t *tenant) set(s haproxy.State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wanted = s
	t.kick()
}

// leave ends the loop, and removes the files with keys and configurations.
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

// errGone is of a tenant that has left.
var errGone = errors.New("the namespace has nothing that is proxied any more")

// faults are what is wrong with Services.
func (t *tenant) faults() map[string]lb.Reason {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[string]lb.Reason{}
	for key := range t.busy {
		out[key.String()] = lb.ProxyPortTaken
	}
	return out
}

// sync gives the worker what changed: endpoints and internal addresses at once, and all else by a reload when its time
// has come.
func (t *tenant) sync(ctx context.Context) (again time.Duration, err error) {
	t.mu.Lock()
	want := t.wanted
	t.mu.Unlock()
	running, err := t.running(ctx)
	if t.hash != running {
		t.inForce, t.hash = nil, ""
	}
	if t.free(&want, err == nil) {
		again = busyInterval
	}
	c := want.Config()
	if err != nil { // the engine starts with the file
		return lookInterval, t.write(want, c)
	}
	if c.Hash == running {
		t.inForce, t.hash, t.since = want.Services, running, time.Time{}
		next, err := t.update(ctx, want, c)
		return daemon.Sooner(again, next), err
	}
	next, err := t.edit(ctx, want, c)
	return daemon.Sooner(again, next), err
}

// free takes from the Services the ports on which the pod cannot listen, as another program does: mostly the HAProxy of
// the namespace that had the node port before. It reports whether there are any.
func (t *tenant) free(want *haproxy.State, serves bool) bool {
	if serves || t.written == "" || time.Since(t.looked) >= probeTime {
		t.looked = time.Now()
		t.taken = t.takenPorts(want.Services)
	}
	busy := map[lb.Key]bool{}
	services := slices.Clone(want.Services)
	for i, s := range services {
		services[i].Ports = slices.DeleteFunc(slices.Clone(s.Ports), func(p haproxy.Port) bool { return t.taken[p.Listen] })
		if len(services[i].Ports) < len(s.Ports) {
			busy[s.Key] = true
		}
	}
	want.Services = services
	t.mu.Lock()
	same := maps.Equal(busy, t.busy)
	t.busy = busy
	t.mu.Unlock()
	if !same {
		t.log.Info("ports of Services on which another program listens are not served", "services", len(busy))
		t.changed()
	}
	return len(busy) > 0
}

// takenPorts returns the ports on which another program listens than the worker that serves, or served last.
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

// edit reloads, or waits.
func (t *tenant) edit(ctx context.Context, want haproxy.State, c haproxy.Config) (time.Duration, error) {
	began := time.Now()
	old, err := t.old(ctx)
	if err != nil {
		return 0, err
	}
	if c.Hash == t.refused && began.Sub(t.last) < retryTime {
		again, err := t.refresh(ctx, want)
		return daemon.Sooner(again, 5*time.Second), err
	}
	if t.since.IsZero() {
		t.since = began
	}
	if wait := haproxy.Due(old, t.last, t.since).Sub(began); wait > 0 {
		again, err := t.refresh(ctx, want)
		return daemon.Sooner(again, min(wait, time.Second)), err // an old worker may end
	}
	if err := t.reload(ctx, want, c); err != nil {
		return 0, err
	}
	t.since = time.Time{}
	return time.Millisecond, nil // endpoints may have changed since
}

// refresh gives the running worker its endpoints while an edit waits.
func (t *tenant) refresh(ctx context.Context, want haproxy.State) (time.Duration, error) {
	if t.hash == "" {
		return 0, nil
	}
	want.Services = haproxy.Refresh(t.inForce, want.Services)
	c := want.Config()
	if c.Hash != t.hash {
		return 0, nil // how the engine runs changed too
	}
	return t.update(ctx, want, c)
}

// update gives the running worker its endpoints and internal addresses, without a reload, and then the file.
func (t *tenant) update(ctx context.Context, want haproxy.State, c haproxy.Config) (again time.Duration, err error) {
	if err := t.replace(ctx, want); err != nil {
		return 0, err
	}
	commands, err := t.commands(ctx, want)
	if len(commands) > 0 {
		for line := range slices.Chunk(commands, commandsInLine) {
			if _, err := t.talk(ctx, strings.Join(line, ";")); err != nil {
				return 0, err
			}
		}
		commands, err = t.commands(ctx, want)
	}
	if err != nil {
		return 0, err
	}
	if !haproxy.Settled(commands) {
		t.log.Warn(
			"the engine did not take a change of endpoints: it gets it by a reload",
			"commands",
			commands[:min(len(commands), 5)],
		)
		return 0, t.reload(ctx, want, c)
	}
	if len(commands) > 0 {
		again = closedInterval
	}
	return again, t.write(want, c)
}

// replace gives the running worker the addresses of nodes and pods, which change as nodes come and go. The file first:
// a worker that starts meanwhile reads it.
func (t *tenant) replace(ctx context.Context, want haproxy.State) error {
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
	if version := haproxy.ParsePrepared(answer); version != "" {
		for _, line := range want.Replace(version) {
			if _, err := t.talk(ctx, line); err != nil {
				return err
			}
		}
	}
	t.internal, t.internalKnown = list, true
	return nil
}

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

// reload has a new worker take over.
func (t *tenant) reload(ctx context.Context, want haproxy.State, c haproxy.Config) error {
	states, err := t.talk(ctx, "show servers state")
	if err != nil {
		return err
	}
	// The new worker begins with what the checks found.
	states = strings.TrimLeft(states, "\n")
	if err := errors.Join(t.put(haproxy.StatesFile, states), t.write(want, c)); err != nil {
		return err
	}
	began := time.Now()
	answer, err := t.order(ctx, "reload")
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
		t.log.Error(
			"the engine refused a configuration: the old one stays in force",
			"configuration",
			c.Hash,
			"answer",
			answer,
		)
		t.refused = c.Hash // the next run writes what is in force into the file
		return nil
	}
	t.reloads.WithLabelValues("done").Inc()
	t.log.Info(
		"the engine has another configuration",
		"configuration",
		c.Hash,
		"services",
		len(want.Services),
		"after",
		time.Since(began),
	)
	t.inForce, t.hash, t.refused = want.Services, running, ""
	t.clean(c)
	return nil
}

// talk gives the running worker a line of commands, and returns its answer.
func (t *tenant) talk(ctx context.Context, text string) (string, error) {
	return talk(ctx, filepath.Join(t.engine.Directory, workerSocket), text, talkTime)
}

func (t *tenant) running(ctx context.Context) (string, error) {
	return ask(ctx, filepath.Join(t.engine.Directory, workerSocket), talkTime)
}

// order gives the engine a command for this namespace.
func (t *tenant) order(ctx context.Context, verb string) (string, error) {
	return talk(ctx, t.master, verb+" "+t.namespace, commandTime)
}

func (t *tenant) old(ctx context.Context) (int, error) {
	text, err := t.order(ctx, "old")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(text))
}
