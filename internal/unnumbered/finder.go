// Package unnumbered finds the routers of BGP peers that are named by a link and not by an address, which FRR calls BGP
// unnumbered: by router discovery (RFC 4861 section 6). A router on the link advertises itself, and the address that it
// does so from is where to dial. The router finds this node in the same way, so on these links this node sends Router
// Advertisements too. They have router lifetime 0 (RFC 4861 section 4.2) and no prefix: this node is no host's default
// router.
//
// Which router a link has is decided by pure functions. A Finder drives them by the clock and by one raw
// ICMPv6 socket for each link. It does not ask the kernel, which takes no notice of Router Advertisements where it
// forwards.
//
// Input is hostile. Nothing is read of an advertisement but that it is one: it must come from a link-local address over
// no hop (RFC 4861 section 6.1.2). How many packets are read in a time and how many routers are remembered is limited,
// and the next advertisement answers all solicitations. A flood does not replace a router with which BGP has a session.
// Whoever can send on the link can pose as its router, as with any other client of router discovery; a password of the
// session does not let him in.
//
// The package sends on no link that it is not given, and dials no machine.
package unnumbered

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// retryInterval is the time after which a socket is opened again that failed.
const retryInterval = time.Second

// Config of a Finder.
type Config struct {
	Log *slog.Logger
	// Links returns the node's links.
	Links func() []lb.Interface
	// Established reports whether BGP has a session with a router, by its address with the zone.
	Established func(router netip.Addr) bool
	// Changed is called after a Router changed. It must not block.
	Changed func()
}

// Router is what was found on a link.
type Router struct {
	// Address of the router, and this node's own address on the link, both with their zone; the zero Addr while no
	// router is known.
	Address, Source netip.Addr
	// Looking: it is too early to say that there is none.
	Looking bool
	// Problem is a sentence about why there is no router, or what is wrong beside it.
	Problem string
}

// Finder finds the routers on links.
type Finder struct {
	config Config
	wake   lb.Signal
	heard  chan event
	// Messages counts by link and direction.
	Messages *prometheus.CounterVec

	mu     sync.Mutex
	wanted []string
	found  map[string]Router

	// ports of the links on which routers are looked for; only Run uses them.
	ports map[string]*port
}

// New returns a Finder that does nothing until Run is called.
func New(c Config) *Finder {
	messages := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_bgp_router_discovery_messages_total",
		Help: "Router Advertisements and Solicitations on links of unnumbered peers by direction: " +
			"sent, received, or rejected.",
	}, []string{"link", "direction"})
	return &Finder{
		config:   c,
		wake:     lb.NewSignal(),
		heard:    make(chan event),
		Messages: messages,
		found:    map[string]Router{},
		ports:    map[string]*port{},
	}
}

// Set makes these the links, by name, on which this node advertises itself and looks for a router. It does not wait. It
// is called again after each change of the node's links.
func (f *Finder) Set(names []string) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	f.mu.Lock()
	maps.DeleteFunc(f.found, func(name string, _ Router) bool { return !slices.Contains(names, name) })
	f.wanted = names
	f.mu.Unlock()
	f.wake.Kick()
}

// Found returns what was found on a link.
func (f *Finder) Found(name string) Router {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r, known := f.found[name]; known {
		return r
	}
	return Router{Looking: true}
}

// Run looks for routers until ctx is cancelled. It sends nothing at the end: router lifetime 0 has been said already
// (RFC 4861 section 6.2.5).
func (f *Finder) Run(ctx context.Context) error {
	defer func() {
		for name := range f.ports {
			f.close(name)
		}
	}()
	retry := f.reconcile(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
			retry = f.reconcile(ctx)
		case <-retry:
			retry = f.reconcile(ctx)
		case e := <-f.heard:
			e.port.routers.hear(time.Now(), e.from)
		case <-time.After(time.Until(f.step(time.Now()))):
		}
	}
}

// step has each port send what is due, publishes what it found, and returns when something is due again.
func (f *Finder) step(moment time.Time) (next time.Time) {
	next = moment.Add(maxInterval)
	for name, p := range f.ports {
		if at := p.step(moment); at.Before(next) {
			next = at
		}
		f.publish(name, p.router())
	}
	return next
}

// reconcile has a port on each wanted link that can have one. It returns when to try again, unless all opened that can.
func (f *Finder) reconcile(ctx context.Context) (retry <-chan time.Time) {
	f.mu.Lock()
	wanted := f.wanted
	f.mu.Unlock()
	byName := map[string]lb.Interface{}
	for _, l := range f.config.Links() {
		byName[l.Name] = l
	}
	for name, p := range f.ports {
		l, exists := byName[name]
		if !slices.Contains(wanted, name) || !exists || !p.serves(l) {
			f.close(name)
		}
	}
	for _, name := range wanted {
		l, exists := byName[name]
		p := f.ports[name]
		switch {
		case !exists:
			f.publish(name, Router{Problem: "this node has no link " + name})
		case !l.LinkLocal().IsValid():
			f.publish(
				name,
				Router{Problem: "link " + name + " has no IPv6 link-local address: it is down, or IPv6 is off there"},
			)
		case p != nil && p.ended():
			f.close(name) // and another one after a pause
			retry = time.After(retryInterval)
		case p != nil:
			p.setUp(time.Now(), l.Up)
		default:
			p, err := startPort(ctx, f, l)
			if err != nil {
				retry = time.After(retryInterval)
				f.publish(name, Router{Problem: fmt.Sprintf("cannot look for routers on link %s: %v", name, err)})
				continue
			}
			f.ports[name] = p
		}
	}
	return retry
}

func (f *Finder) close(name string) {
	f.ports[name].close()
	delete(f.ports, name)
}

// publish makes a router known, if its link is still wanted and it differs.
func (f *Finder) publish(name string, r Router) {
	f.mu.Lock()
	before := f.found[name]
	if before == r || !slices.Contains(f.wanted, name) {
		f.mu.Unlock()
		return
	}
	f.found[name] = r
	f.mu.Unlock()
	log := f.config.Log.With("link", name)
	if r.Address != before.Address {
		log.Info("router of the link", "address", r.Address, "before", before.Address)
	}
	if r.Problem != before.Problem && r.Problem != "" {
		log.Warn("unnumbered BGP", "reason", r.Problem)
	}
	f.config.Changed()
}
