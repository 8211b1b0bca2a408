package kubeproxy

import (
	"context"
	"encoding/json"
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
	// askInterval is between two questions about a Service: a good part of what kube-proxy needs at least.
	askInterval = 50 * time.Millisecond
	// askTimeout limits one question.
	askTimeout = 500 * time.Millisecond
	// askPatience is how long nobody may answer: longer than a restart of kube-proxy takes.
	askPatience = 10 * time.Second
	// mostAsked bounds the Services that are asked about, and atOnce the questions at a time, so that a burst costs no
	// more.
	mostAsked = 256
	atOnce    = 8
)

// HealthPort is where kube-proxy says how many endpoints of a Service it serves on the node: spec.healthCheckNodePort
// of a Service with externalTrafficPolicy Local. It is on the node's addresses.
type HealthPort struct {
	Addresses []netip.Addr
	Port      uint16
	// HeadStart reports whether what arrives is served as long as kube-proxy does not know the Service, and the port is
	// closed.
	HeadStart func() bool
}

// Endpoints finds out for which Services kube-proxy does not serve the endpoints on this node yet. A node without a
// local endpoint drops what arrives for a Service with externalTrafficPolicy Local, and kube-proxy learns of the first
// one later than Holdfast: by its sync period, or its next start.
type Endpoints struct {
	log  *slog.Logger
	kick func()
	// ask returns how many endpoints kube-proxy serves. Tests replace it.
	ask func(context.Context, netip.AddrPort) (int, error)
	// more is signalled when there may be Services to ask about.
	more lb.Signal

	mu sync.Mutex
	// services maps each Service with an endpoint here to what is known; nil before the first Set.
	services map[lb.Key]*asked
}

// asked is one Service that kube-proxy is asked about.
type asked struct {
	at HealthPort
	// since when nobody has answered; the zero time if kube-proxy serves the Service here, or was given up.
	since time.Time
}

// NewEndpoints returns an Endpoints that asks nothing before Run, and calls kick when kube-proxy serves an endpoint.
func NewEndpoints(log *slog.Logger, kick func()) *Endpoints {
	client := newClient(askTimeout)
	return &Endpoints{
		log:  log,
		kick: kick,
		more: lb.NewSignal(),
		ask: func(ctx context.Context, at netip.AddrPort) (int, error) {
			return served(ctx, client, at)
		},
	}
}

// Set makes these the Services with an endpoint on this node, and returns those that kube-proxy does not serve here
// yet. Those of the first call were there before this process: it asks about later ones only.
func (e *Endpoints) Set(services map[lb.Key]HealthPort) (waiting map[lb.Key]bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	first, now := e.services == nil, time.Now()
	next := make(map[lb.Key]*asked, len(services))
	for key, at := range services {
		a := e.services[key]
		if a == nil {
			a = &asked{}
			if !first && at.Port != 0 {
				a.since = now
			}
		}

		a.at, next[key] = at, a
		switch {
		case a.since.IsZero():
		case len(waiting) == mostAsked:
			a.since = time.Time{}
		case waiting == nil:
			waiting = map[lb.Key]bool{key: true}
		default:
			waiting[key] = true
		}
	}

	e.services = next
	return waiting
}

// Ask has Run ask about what waits: when the head starts of a plan are in force.
func (e *Endpoints) Ask() { e.more.Kick() }

// Run asks until ctx ends, while there is something to ask.
func (e *Endpoints) Run(ctx context.Context) error {
	pause := time.NewTicker(askInterval)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.more:
		}

		for e.round(ctx) {
			select {
			case <-ctx.Done():
				return nil
			case <-pause.C:
			}
		}
	}
}

// round asks once about every Service, and reports whether some are left.
func (e *Endpoints) round(ctx context.Context) (left bool) {
	var group errgroup.Group
	group.SetLimit(atOnce)
	for key, a := range e.waiting() {
		group.Go(func() error {
			if n, why := e.askAll(ctx, a.at); ctx.Err() == nil {
				e.learn(key, a, n, why)
			}

			return nil
		})
	}

	_ = group.Wait() // it has no errors
	return len(e.waiting()) > 0
}

// waiting returns the Services to ask about.
func (e *Endpoints) waiting() map[lb.Key]asked {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[lb.Key]asked{}
	for key, a := range e.services {
		if !a.since.IsZero() {
			out[key] = *a
		}
	}

	return out
}

// askAll asks at the node's addresses until one answers: kube-proxy need not listen on all.
func (e *Endpoints) askAll(ctx context.Context, at HealthPort) (n int, why error) {
	why = fmt.Errorf("the node has no address")
	for _, address := range at.Addresses {
		if n, why = e.ask(ctx, netip.AddrPortFrom(address, at.Port)); why == nil {
			return n, nil
		}
	}

	return 0, why
}

// learn notes an answer. Where nobody answers for askPatience something other than kube-proxy may serve, without a
// health port; where kube-proxy says that it serves no endpoint it drops what arrives, and that is waited out.
func (e *Endpoints) learn(key lb.Key, was asked, n int, why error) {
	led := why != nil && was.at.HeadStart != nil && was.at.HeadStart()
	e.mu.Lock()
	a := e.services[key]
	known := a != nil && a.since.Equal(was.since) && a.at.Port == was.at.Port
	done := known && (n > 0 || led || why != nil && time.Since(a.since) > askPatience)
	switch {
	case done:
		a.since = time.Time{}
	case known && why == nil:
		a.since = time.Now()
	}

	e.mu.Unlock()
	if !done {
		return
	}

	if why != nil && !led {
		e.log.Warn(
			"kube-proxy does not say whether it serves the endpoints here; the Service is announced without its word",
			"service",
			key,
			"port",
			was.at.Port,
			"error",
			why,
		)
	}

	e.kick()
}

// Waiting returns the Services that kube-proxy does not serve here yet.
func (e *Endpoints) Waiting() []lb.Key {
	return slices.SortedFunc(maps.Keys(e.waiting()), lb.Key.Compare)
}

// served asks kube-proxy how many endpoints of a Service it serves on this node. It answers 503 for none. One that
// accepts the connection and says nothing is stalled, and serves none that is new.
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
