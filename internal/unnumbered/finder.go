// Package unnumbered finds the routers of BGP peers that are configured by a link and not by an address, by router
// discovery (RFC 4861 section 6). FRR calls this BGP unnumbered.
//
//	f := unnumbered.New(unnumbered.Config{Log: log, Links: links, Established: isEstablished, Changed: kick})
//	go f.Run(ctx)
//	f.Set([]string{"eth1"})
//	router := f.Found("eth1")   // its address, or why there is none
//
// A router advertises itself on the link, from the address to dial. It finds this node in the same way, so this node
// sends Router Advertisements on these links too. They have router lifetime 0 (RFC 4861 section 4.2) and no prefix:
// this node is no host's default router.
//
// Pure functions decide which router a link has. A Finder calls them by the clock, with a raw ICMPv6 socket for each
// link. It does not ask the kernel, which ignores Router Advertisements on links between which it forwards.
//
// Input is hostile. Only the fact of an advertisement is used, if it comes from a link-local address over no hop (RFC
// 4861 section 6.1.2). The rate of packets and the number of routers are bounded, and the next advertisement answers
// all solicitations. A flood does not replace a router with which BGP has a session. A machine on the link can pose as
// its router, as with any other use of router discovery. A password of the session keeps it out.
//
// The package must not send on other links than the links of Set, and dials no machine.
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

// retryInterval is the pause before a failed socket is opened again.
const retryInterval = time.Second

// Config is what a Finder needs.
type Config struct {
	Log *slog.Logger
	// Links returns the node's links.
	Links func() []lb.Interface
	// Established reports whether BGP has a session with a router, by its address with the zone.
	Established func(router netip.Addr) bool
	// Changed is called after a Router changed. It must not block.
	Changed func()
}

// Router is the router of a link.
type Router struct {
	// Address is the address of the router, and Source this node's own address on the link. Both have the zone of the
	// link, and are the zero Addr while no router is known.
	Address, Source netip.Addr
	// Looking reports whether a router may still answer.
	Looking bool
	// Problem is a sentence about why there is no router, or about a mistake beside it.
	Problem string
}

// Finder finds the routers on links.
type Finder struct {
	config   Config
	wake     lb.Signal
	received chan advertisement
	// Messages counts the packets by link and direction.
	Messages *prometheus.CounterVec

	mu     sync.Mutex
	wanted []string
	found  map[string]Router

	// ports are the ports of the links of Set. Only Run uses them.
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
		received: make(chan advertisement),
		Messages: messages,
		found:    map[string]Router{},
		ports:    map[string]*port{},
	}
}

// Set sets the links, by name, on which this node advertises itself and looks for a router. It does not wait. The
// caller repeats it after each change of the node's links.
func (f *Finder) Set(names []string) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	f.mu.Lock()
	maps.DeleteFunc(f.found, func(name string, _ Router) bool { return !slices.Contains(names, name) })
	f.wanted = names
	f.mu.Unlock()
	f.wake.Kick()
}

// Found returns the router of a link.
func (f *Finder) Found(name string) Router {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, known := f.found[name]
	if known {
		return r
	}

	return Router{Looking: true}
}

// Run looks for routers until ctx is cancelled. It sends nothing at the end: all advertisements have router lifetime 0
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
		case a := <-f.received:
			a.port.routers.receive(time.Now(), a.from)
		case <-time.After(time.Until(f.step(time.Now()))):
		}
	}
}

// step makes each port send the packets that are due, publishes its router, and returns when the next packet is due.
func (f *Finder) step(moment time.Time) (next time.Time) {
	next = moment.Add(maxInterval)
	for name, p := range f.ports {
		at := p.step(moment)
		if at.Before(next) {
			next = at
		}

		f.publish(name, p.router())
	}

	return next
}

// reconcile opens a port on each wanted link that can have one, and closes all others. If a socket failed it returns
// when to try again.
func (f *Finder) reconcile(ctx context.Context) (retry <-chan time.Time) {
	f.mu.Lock()
	wanted := f.wanted
	f.mu.Unlock()
	links := map[string]lb.Interface{}
	for _, l := range f.config.Links() {
		links[l.Name] = l
	}

	for name, p := range f.ports {
		l, exists := links[name]
		isWanted := slices.Contains(wanted, name)
		if !isWanted || !exists || !p.serves(l) {
			f.close(name)
		}
	}

	for _, name := range wanted {
		l, exists := links[name]
		switch {
		case !exists:
			f.publish(name, Router{Problem: "this node has no link " + name})
		case !l.LinkLocal().IsValid():
			problem := "link " + name + " has no IPv6 link-local address: it is down, or IPv6 is off there"
			f.publish(name, Router{Problem: problem})
		default:
			isOpen := f.open(ctx, l)
			if !isOpen {
				retry = time.After(retryInterval)
			}
		}
	}

	return retry
}

// open opens the port of a link unless it is open, and reports whether it is.
func (f *Finder) open(ctx context.Context, l lb.Interface) (isOpen bool) {
	p := f.ports[l.Name]
	if p != nil && p.hasFailed() {
		f.close(l.Name)
		return false
	}

	if p != nil {
		p.setUp(time.Now(), l.Up)
		return true
	}

	p, err := startPort(ctx, f, l)
	if err != nil {
		problem := fmt.Sprintf("cannot look for routers on link %s: %v", l.Name, err)
		f.publish(l.Name, Router{Problem: problem})
		return false
	}

	f.ports[l.Name] = p
	return true
}

// close closes the port of a link.
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
