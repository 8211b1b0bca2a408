package kubeproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"golang.org/x/sync/errgroup"
)

const (
	// askInterval is the time between two requests about a Service. kube-proxy needs longer for an update.
	askInterval = 50 * time.Millisecond
	// askTimeout is the timeout of a request.
	askTimeout = 500 * time.Millisecond
	// askPatience is the time without an answer after which a Service no longer waits. A restart of kube-proxy is
	// shorter.
	askPatience = 10 * time.Second
	// maxWaiting limits the Services that wait, and maxParallel the requests at a time. They limit the cost of a burst.
	maxWaiting  = 256
	maxParallel = 8
)

// HealthPort is the port at which kube-proxy reports the number of a Service's endpoints that it serves on the node:
// spec.healthCheckNodePort of a Service with externalTrafficPolicy Local.
type HealthPort struct {
	// Addresses are the addresses of the node.
	Addresses []netip.Addr
	// Port is the port number; 0 for none.
	Port uint16
	// HeadStart reports whether a HeadStart serves the Service. It is asked while the port is closed, because
	// kube-proxy has not programmed the Service. It may be nil.
	HeadStart func() bool
}

// Endpoints finds the Services whose endpoints on this node kube-proxy does not serve yet. A node without a local
// endpoint drops packets to a Service with externalTrafficPolicy Local, and kube-proxy learns of the first endpoint
// later than Holdfast: after its sync period, or after its next start.
type Endpoints struct {
	log  *slog.Logger
	kick func()
	// ask returns the number of endpoints that kube-proxy serves. Tests replace it.
	ask func(context.Context, netip.AddrPort) (int, error)
	// wake makes Run ask about the Services that wait.
	wake lb.Signal

	mu sync.Mutex
	// services are the Services with an endpoint here; nil before the first Set.
	services map[lb.Key]*localService
}

// localService is a Service with an endpoint on this node.
type localService struct {
	health HealthPort
	// since is the time since when kube-proxy has not answered; the zero Time if the Service does not wait.
	since time.Time
}

// NewEndpoints returns an Endpoints that calls kick when a Service no longer waits. It sends no request before Run.
func NewEndpoints(log *slog.Logger, kick func()) *Endpoints {
	client := newClient(askTimeout)
	return &Endpoints{
		log:  log,
		kick: kick,
		wake: lb.NewSignal(),
		ask: func(ctx context.Context, at netip.AddrPort) (int, error) {
			return served(ctx, client, at)
		},
	}
}

// Set sets the Services with an endpoint on this node. A new one waits until kube-proxy serves it here. Services of the
// first call do not wait, because their endpoints are older than this process.
func (e *Endpoints) Set(services map[lb.Key]HealthPort) {
	e.mu.Lock()
	defer e.mu.Unlock()
	isFirst := e.services == nil
	start := time.Now()
	waiting := 0
	next := make(map[lb.Key]*localService, len(services))
	for key, health := range services {
		s := e.services[key]
		if s == nil {
			s = &localService{}
			if !isFirst && health.Port != 0 {
				s.since = start
			}
		}
		s.health = health
		next[key] = s

		switch {
		case s.since.IsZero():
		case waiting == maxWaiting:
			s.since = time.Time{}
		default:
			waiting++
		}
	}

	e.services = next
}

// Ask makes Run ask about the Services that wait. It is called when the head starts of a plan are in force.
func (e *Endpoints) Ask() { e.wake.Kick() }

// Run sends requests after each Ask while a Service waits, until ctx ends.
func (e *Endpoints) Run(ctx context.Context) error {
	pause := time.NewTicker(askInterval)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.wake:
		}

		for e.askRound(ctx) {
			select {
			case <-ctx.Done():
				return nil
			case <-pause.C:
			}
		}
	}
}

// askRound asks once about every Service that waits, and reports whether some still wait.
func (e *Endpoints) askRound(ctx context.Context) (left bool) {
	var group errgroup.Group
	group.SetLimit(maxParallel)
	for key, s := range e.waiting() {
		group.Go(func() error {
			n, err := e.askAll(ctx, s.health)
			if ctx.Err() == nil {
				e.recordAnswer(key, s, n, err)
			}
			return nil
		})
	}

	_ = group.Wait() // it has no errors
	return len(e.waiting()) > 0
}

// waiting returns the Services that wait.
func (e *Endpoints) waiting() map[lb.Key]localService {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[lb.Key]localService{}
	for key, s := range e.services {
		if !s.since.IsZero() {
			out[key] = *s
		}
	}

	return out
}

// askAll asks at one address of the node after another until one answers: kube-proxy may listen on some of them only.
func (e *Endpoints) askAll(ctx context.Context, health HealthPort) (n int, err error) {
	err = errors.New("the node has no address")
	for _, address := range health.Addresses {
		n, err = e.ask(ctx, netip.AddrPortFrom(address, health.Port))
		if err == nil {
			return n, nil
		}
	}
	return 0, err
}

// recordAnswer records the answer of kube-proxy about a Service, and kicks if the Service no longer waits. Without an
// answer for askPatience another program may serve, without a health port. If kube-proxy answers that it serves no
// endpoint, it drops packets, and the Service waits as long as that lasts.
func (e *Endpoints) recordAnswer(key lb.Key, before localService, n int, err error) {
	hasHeadStart := err != nil && before.health.HeadStart != nil && before.health.HeadStart()
	if !e.update(key, before, n, err, hasHeadStart) {
		return
	}

	if err != nil && !hasHeadStart {
		e.log.Warn("kube-proxy does not say whether it serves the endpoints here; "+
			"the Service is announced without its word", "service", key, "port", before.health.Port, "error", err)
	}
	e.kick()
}

// update updates a Service after an answer, and reports whether it no longer waits. It does nothing if Set has changed
// the Service meanwhile.
func (e *Endpoints) update(key lb.Key, before localService, n int, err error, hasHeadStart bool) (done bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.services[key]
	isCurrent := s != nil && s.since.Equal(before.since) && s.health.Port == before.health.Port
	if !isCurrent {
		return false
	}

	isTooLong := err != nil && time.Since(s.since) > askPatience
	if n > 0 || hasHeadStart || isTooLong {
		s.since = time.Time{}
		return true
	}
	if err == nil {
		s.since = time.Now()
	}
	return false
}

// Waiting returns the Services that kube-proxy does not serve here yet.
func (e *Endpoints) Waiting() []lb.Key {
	return slices.SortedFunc(maps.Keys(e.waiting()), lb.Key.Compare)
}

// served asks kube-proxy for the number of a Service's endpoints that it serves on this node. It answers 503 for none.
// A kube-proxy that accepts the connection and does not answer is stalled, and serves no new endpoint.
func served(ctx context.Context, client *http.Client, at netip.AddrPort) (int, error) {
	response, listens, err := get(ctx, client, at.String()+"/healthz")
	if err != nil && listens {
		return 0, nil
	}

	if err != nil {
		return 0, err
	}

	defer response.Body.Close()
	var answer struct {
		LocalEndpoints *int `json:"localEndpoints"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, 4096)).Decode(&answer); err != nil {
		return 0, fmt.Errorf("read the answer of %s: %w", at, err)
	}

	if answer.LocalEndpoints == nil {
		return 0, fmt.Errorf("%s does not answer as kube-proxy does", at)
	}

	return *answer.LocalEndpoints, nil
}
