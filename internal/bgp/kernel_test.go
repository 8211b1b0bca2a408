package bgp

import (
	"slices"
	"sync"
	"testing"
	"time"

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
	// awaited receive when a prefix appears.
	awaited map[string]chan time.Time
}

func watchKernel(t *testing.T, ns *nstest.NS) *kernel {
	t.Helper()
	k := &kernel{t: t, ns: ns, awaited: map[string]chan time.Time{}}
	updates, done := make(chan netlink.RouteUpdate), make(chan struct{})
	t.Cleanup(func() { close(done) })
	ns.Do(func() {
		options := netlink.RouteSubscribeOptions{ReceiveBufferSize: 16 << 20, ReceiveBufferForceSize: true} // for thousands at once
		if err := netlink.RouteSubscribeWithOptions(updates, done, options); err != nil {
			t.Fatalf("subscribe to routes: %v", err)
		}
	})
	go func() {
		for u := range updates {
			if u.Dst == nil {
				continue
			}
			k.mu.Lock()
			if prefix := u.Dst.String(); u.Type == unix.RTM_DELROUTE {
				k.deleted = append(k.deleted, prefix)
			} else if c := k.awaited[prefix]; c != nil {
				c <- time.Now()
				delete(k.awaited, prefix)
			}
			k.mu.Unlock()
		}
	}()
	return k
}

// await returns a channel that receives when a prefix appears.
func (k *kernel) await(prefix string) <-chan time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := make(chan time.Time, 1)
	k.awaited[prefix] = c
	return c
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
