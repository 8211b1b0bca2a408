package testbed

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// RouteChange is a change of a route in a router's kernel.
type RouteChange struct {
	At     time.Time
	Prefix netip.Prefix
	// Hops are the next hops after the change; none if the route is gone.
	Hops []netip.Addr
}

// Lacks reports whether a next hop is not among those after the change.
func (c RouteChange) Lacks(hop netip.Addr) bool { return !slices.Contains(c.Hops, hop) }

// RouteWatch collects the changes of a router's routes.
type RouteWatch struct {
	Router string
	cmd    *exec.Cmd
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	changes []RouteChange
}

// marker is an unused route: its change shows that a watch works.
var marker = netip.MustParsePrefix("192.0.2.99/32")

// WatchRoutes starts to collect the changes of the routes in a router's kernel, as netlink reports them.
func (b *Bed) WatchRoutes(ctx context.Context, router string) (*RouteWatch, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &RouteWatch{Router: router, cancel: cancel, done: make(chan struct{})}
	w.cmd = b.Cluster.Command(ctx, router, "ip", "-ts", "-o", "monitor", "route")
	out, err := w.cmd.StdoutPipe()
	if err == nil {
		err = w.cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watch routes of %s: %w", router, err)
	}
	go func() {
		defer close(w.done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if c, ok := readRouteChange(lines.Text()); ok {
				w.mu.Lock()
				w.changes = append(w.changes, c)
				w.mu.Unlock()
			}
		}
	}()
	err = Until(ctx, 20*time.Second, "the watch of routes", func(ctx context.Context) error {
		for _, verb := range []string{"replace", "del"} {
			if _, err := b.On(ctx, router, "ip", "route", verb, "blackhole", marker.String()); err != nil {
				return err
			}
		}
		if len(w.Changes()) == 0 {
			return fmt.Errorf("it has no output")
		}
		return nil
	})
	if err != nil {
		w.Stop()
		return nil, err
	}
	return w, nil
}

// Changes returns the changes so far.
func (w *RouteWatch) Changes() []RouteChange {
	w.mu.Lock()
	defer w.mu.Unlock()
	return replaced(w.changes)
}

// replacing is how long zebra needs between the two steps in which it replaces an IPv6 route.
const replacing = 5 * time.Millisecond

// replaced returns the changes without deletions that are the first half of a replacement.
func replaced(changes []RouteChange) []RouteChange {
	var out []RouteChange
	for i, c := range changes {
		again := slices.ContainsFunc(changes[i+1:], func(next RouteChange) bool {
			return next.Prefix == c.Prefix && len(next.Hops) > 0 && next.At.Sub(c.At) < replacing
		})
		if len(c.Hops) > 0 || !again {
			out = append(out, c)
		}
	}
	return out
}

// Stop ends the watch and returns the changes.
func (w *RouteWatch) Stop() []RouteChange {
	w.cancel()
	<-w.done
	_ = w.cmd.Wait() // its error is that it was killed
	return w.Changes()
}

// Lost returns when a next hop of a prefix went for the last time; the zero time if it did not go, or is back.
func Lost(changes []RouteChange, prefix netip.Prefix, hop netip.Addr) time.Time {
	var at time.Time
	for _, c := range changes {
		if c.Prefix != prefix {
			continue
		}
		switch {
		case !c.Lacks(hop):
			at = time.Time{}
		case at.IsZero():
			at = c.At
		}
	}
	return at
}

// readRouteChange reads a line of ip monitor.
func readRouteChange(line string) (RouteChange, bool) {
	stamp, rest, ok := strings.Cut(strings.TrimPrefix(line, "["), "] ")
	if !ok {
		return RouteChange{}, false
	}
	at, err := time.ParseInLocation("2006-01-02T15:04:05.000000", stamp, time.Local)
	if err != nil {
		return RouteChange{}, false
	}
	words := strings.Fields(rest)
	words = slices.DeleteFunc(words, func(w string) bool { return w == "unicast" || w == "blackhole" })
	deleted := len(words) > 0 && words[0] == "Deleted"
	if deleted {
		words = words[1:]
	}
	if len(words) == 0 {
		return RouteChange{}, false
	}
	prefix, err := netip.ParsePrefix(words[0])
	if err != nil {
		a, err := netip.ParseAddr(words[0])
		if err != nil {
			return RouteChange{}, false
		}
		prefix = netip.PrefixFrom(a, a.BitLen())
	}
	c := RouteChange{At: at, Prefix: prefix}
	for i, w := range words[:len(words)-1] {
		if a, err := netip.ParseAddr(words[i+1]); w == "via" && err == nil && !deleted {
			c.Hops = append(c.Hops, a)
		}
	}
	return c, true
}
