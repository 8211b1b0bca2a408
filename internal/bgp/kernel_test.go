package bgp

import (
	"slices"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// kernel watches the routes in a router's kernel.
type kernel struct {
	t       *testing.T
	ns      *nstest.NS
	mu      sync.Mutex
	deleted []string
}

func watchKernel(t *testing.T, ns *nstest.NS) *kernel {
	t.Helper()
	k := &kernel{t: t, ns: ns}
	updates, done := make(chan netlink.RouteUpdate), make(chan struct{})
	t.Cleanup(func() { close(done) })
	ns.Do(func() {
		if err := netlink.RouteSubscribe(updates, done); err != nil {
			t.Fatalf("subscribe to routes: %v", err)
		}
	})
	go func() {
		for u := range updates {
			if u.Type == unix.RTM_DELROUTE && u.Dst != nil {
				k.mu.Lock()
				k.deleted = append(k.deleted, u.Dst.String())
				k.mu.Unlock()
			}
		}
	}()
	return k
}

// has reports whether the kernel routes a prefix to a gateway.
func (k *kernel) has(prefix string) bool {
	k.t.Helper()
	routes, err := k.ns.Netlink().RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		k.t.Fatalf("list routes: %v", err)
	}
	return slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Dst != nil && r.Dst.String() == prefix })
}

// lost returns which of these prefixes ever vanished, however briefly.
func (k *kernel) lost(prefixes ...string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []string
	for _, d := range k.deleted {
		if slices.Contains(prefixes, d) {
			out = append(out, d)
		}
	}
	return out
}
