// Package report writes the state of one node to the API server: conditions and Events of Services, and the
// SpeakerState of the node. It also shows what stands as metrics.
//
// Set takes the result of each run of the plan loop; Kick reports other changes. The package writes in loops of its
// own, so that an API server that hangs never delays a plan, and thereby a failover. Ready keeps the speaker unready
// until its BGP sessions are established.
//
//	r := report.New(report.Config{Node: "w1", ...})
//	go r.Run(ctx)
//	r.Set(report.Standing{Plan: p, Members: members, Problems: problems, Sessions: sessions})
//
// What is to be written to a Service is a pure function, whose results are remembered (statuses). Writes are paced, so
// that they delay neither announcements nor other speakers' writes (pace).
//
// The package must not decide anything about addresses. Its callers must not change a value that they passed to it.
package report

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// Layer2 shows the announcements by ARP and NDP.
type Layer2 interface {
	// State returns the links, and the addresses that this node owns, ordered.
	State() lb.Layer2
	// Networks returns the subnets and the gateways of the links that announce.
	Networks() (subnets []netip.Prefix, gateways []netip.Addr)
	// Announcing reports whether announcements are still being sent.
	Announcing() bool
}

// Liveness shows which other nodes are alive.
type Liveness interface {
	// Heard returns the nodes whose speakers are alive; nil before the membership has started.
	Heard() map[string]bool
	// Silence returns the nodes that do not answer, as this node writes them.
	Silence(repeats bool) liveness.Silence
}

// Config configures a Reporter.
type Config struct {
	Log *slog.Logger
	// Node is the name of this node.
	Node     string
	Cluster  *k8s.Cluster
	Layer2   Layer2
	Liveness Liveness
	// Links returns the links of this node.
	Links func() []lb.Interface
	// Sessions returns the BGP sessions of this node at this moment.
	Sessions func() []lb.Session
	// Speakers returns the names of the nodes by the MACs of their links; nil before the membership has started.
	Speakers func() map[lb.MAC]string
	// KeysVersion returns the version of the members' Secret that this speaker has read.
	KeysVersion func() string
	// ProxyFaults returns the reasons why proxies of this node do not serve Services.
	ProxyFaults func() map[lb.Key]lb.Reason
}

// Standing is the result of one run of the plan loop.
type Standing struct {
	Plan plan.Plan
	// Members are the nodes whose speakers are alive.
	Members  map[string]bool
	Problems []lb.Problem
	// Closings are the Services whose pods' outgoing connections the node rejects, ordered by Service.
	Closings []lb.EgressClosing
	// Sessions are the sessions with routers, as the plan knew them.
	Sessions []lb.Session `json:"-"`
}

// Reporter writes the results of runs to the API server.
type Reporter struct {
	Config
	// services writes Services.
	services *daemon.Loop
	// states writes the SpeakerState. It has a loop of its own: a silent node must be reported at once, whatever else
	// is being written.
	states   *daemon.Loop
	sessions *sessionGate
	last     *lastStanding
}

// lastStanding is the result of the last run of the plan loop; nil before the first.
type lastStanding = atomic.Pointer[Standing]

// New returns a Reporter that Run starts.
func New(c Config) *Reporter {
	r := &Reporter{
		Config: c,
		sessions: &sessionGate{
			log:       c.Log,
			selecting: func() map[string]bool { return c.Cluster.PeersOf(c.Node) },
		},
		last: &lastStanding{},
	}
	services := newServiceWriter(c, r.last)
	states := &stateWriter{
		Config:   c,
		last:     r.last,
		inBurst:  c.Cluster.InBurst,
		sessions: r.sessions,
	}
	r.services = daemon.NewLoop(daemon.LoopConfig{
		Name:  "report",
		Log:   c.Log,
		Sync:  services.sync,
		Burst: c.Cluster.InBurst,
	})
	r.states = daemon.NewLoop(daemon.LoopConfig{
		Name: "state",
		Log:  c.Log,
		Sync: states.sync,
	})
	return r
}

// Set makes the Reporter write the result of a run.
func (r *Reporter) Set(s Standing) {
	r.last.Store(&s)
	r.Kick()
}

// Kick makes both loops run, as when an announcement has changed. It never blocks.
func (r *Reporter) Kick() {
	r.services.Kick()
	r.states.Kick()
}

// KickState makes the loop of the SpeakerState run. It never blocks.
func (r *Reporter) KickState() { r.states.Kick() }

// Run writes until ctx is cancelled.
func (r *Reporter) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return r.services.Run(ctx)
	})
	group.Go(func() error {
		return r.states.Run(ctx)
	})
	return group.Wait()
}

// Ready returns an error that names the BGP sessions that a starting speaker still waits for. An operator may override
// that.
func (r *Reporter) Ready(overridden bool) error {
	return r.sessions.check(time.Now(), r.Sessions(), overridden)
}
