// Package podnetwork finds out whether the network plugin has made routes to the pods of other nodes since this node started.
//
// A network plugin runs in a pod, as Holdfast does. Its configuration on disk and the conditions of the Node are from before the boot, and say
// that it is ready. kube-proxy serves earlier, and sends connections to endpoints on other nodes, to which there is no route yet.
//
//	w := podnetwork.New(podnetwork.Config{Log: log, Remote: remote, Kick: loop.Kick})
//	go w.Run(ctx)
//	<-w.Looked()
//	if w.Missing() { … } // others should announce what they can
//
// In goes what the cluster knows of pods, out comes a yes or no. The package only reads routes, and changes nothing but a record of its own.
package podnetwork

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

const (
	// interval is the time between two looks. A look at sixteen pods takes less than a millisecond.
	interval = 250 * time.Millisecond
	// patience is how long the plugin of a node without routes counts as not started. The routes of some networks are in their
	// routers, or in eBPF maps, and the node never has any.
	patience = 3 * time.Minute
)

// Config is what a Watch needs.
type Config struct {
	Log *slog.Logger
	// Remote returns addresses of pods on other nodes, some of each family.
	Remote func() []netip.Addr
	// Kick is called when Missing changes.
	Kick func()
}

// Watch is the time between the start of a node and the first routes of its network plugin.
type Watch struct {
	config Config
	// hasRoute looks for a route. Tests replace it.
	hasRoute func(netip.Addr) bool
	// looked is closed after the first look.
	looked  chan struct{}
	missing atomic.Bool
}

// New returns a Watch that has not looked yet.
func New(c Config) *Watch {
	return &Watch{config: c, hasRoute: hasRoute, looked: make(chan struct{})}
}

// Missing reports whether this node has no route to the pods of other nodes, in one of the families that these have, and has had none since it
// started, which was less than three minutes ago.
func (w *Watch) Missing() bool { return w.missing.Load() }

// Looked returns a channel that is closed after the first look; before that, Missing has no meaning.
func (w *Watch) Looked() <-chan struct{} { return w.looked }

// Run looks until there are routes, or it has waited long enough, or ctx ends. A later speaker on this node does not wait again.
func (w *Watch) Run(ctx context.Context) error {
	if record().Exists() {
		close(w.looked)
		return nil
	}
	if !w.await(ctx) {
		return nil
	}
	if err := record().Mark(); err != nil {
		w.config.Log.Warn("the next speaker on this node will wait for routes to pods again", "error", err)
	}
	return nil
}

// await looks until there are routes, or it has waited long enough. It returns false if ctx ends before.
func (w *Watch) await(ctx context.Context) bool {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	end := time.NewTimer(patience)
	defer end.Stop()

	for first := true; ; first = false {
		remote := w.config.Remote()
		family, missing := w.unrouted(remote)
		changed := w.missing.Swap(missing) != missing
		if first {
			close(w.looked)
		}
		if changed {
			w.config.Log.Info("routes to pods of other nodes", "missing", missing, "family", family, "pods", lb.SomeOf(remote))
			w.config.Kick()
		}
		if !missing && len(remote) > 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-end.C:
			w.giveUp()
			return true
		case <-tick.C:
		}
	}
}

// giveUp ends the wait of a node that has no routes: its network may need none.
func (w *Watch) giveUp() {
	if w.missing.Swap(false) {
		w.config.Log.Warn("there are no routes to pods of other nodes, and this node no longer waits for them", "after", patience)
		w.config.Kick()
	}
}

// unrouted returns a family in which there is no route to any of these pods.
func (w *Watch) unrouted(pods []netip.Addr) (family lb.Family, missing bool) {
	has := map[lb.Family]bool{}
	for _, pod := range pods {
		f := lb.FamilyOf(pod)
		has[f] = has[f] || w.hasRoute(pod)
	}
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		if routed, known := has[f]; known && !routed {
			return f, true
		}
	}
	return "", false
}

// hasRoute reports whether the kernel has a route to an address that is no default route. The default route is there before the plugin is.
func hasRoute(to netip.Addr) bool {
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(routes) == 0 {
		return false // a missing route is also an error
	}
	r := routes[0]
	if r.Type != unix.RTN_UNICAST || r.Dst == nil {
		return false
	}
	bits, _ := r.Dst.Mask.Size()
	return bits > 0
}

// recordTable is an empty table which records that there were routes. It survives restarts of the speaker, but not of the node.
const recordTable = "holdfast-routed"

func record() nft.Table { return nft.Table{Family: unix.NFPROTO_INET, Name: recordTable} }

// Forget deletes the record that there were routes, so that an uninstalled speaker leaves nothing behind.
func Forget() error {
	if err := record().Delete(); err != nil {
		return fmt.Errorf("delete table %s: %w", recordTable, err)
	}
	return nil
}
