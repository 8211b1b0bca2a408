package podnetwork

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

var (
	pod4, pod6 = netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244:1::5")
	both       = []netip.Addr{pod4, pod6}
)

// TestRoutes looks for routes in a real kernel, as network plugins make them.
func TestRoutes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		node.Attach("eth0", []string{"192.0.2.1/24", "2001:db8::1/64"}, "192.0.2.254/24", "2001:db8::fe/64")
		ip := func(arguments ...string) { node.Output("ip", arguments...) }
		expect := func(when string, want4, want6 bool) {
			t.Helper()
			if got4, got6 := hasRoute(pod4), hasRoute(pod6); got4 != want4 || got6 != want6 {
				t.Errorf("%s: IPv4 %t, IPv6 %t, want %t, %t", when, got4, got6, want4, want6)
			}
		}
		expect("no default route", false, false)
		node.AddDefault("192.0.2.254", "2001:db8::fe")
		expect("default routes alone", false, false)
		ip("route", "add", "10.244.1.0/24", "via", "192.0.2.2")
		expect("a route to one node's pods", true, false)
		ip("-6", "route", "add", "fd00:10:244::/48", "via", "2001:db8::2")
		expect("a route to all nodes' pods", true, true)
		ip("route", "add", "blackhole", "10.244.1.0/26")
		ip("-6", "route", "add", "unreachable", "fd00:10:244:1::/64")
		expect("routes that drop", false, false)
		ip("route", "add", "10.244.1.5", "dev", "eth0", "table", "7")
		ip("rule", "add", "to", "10.244.0.0/16", "lookup", "7")
		expect("a route in another table", true, false)
	})
}

// TestWatch is a boot: the plugin starts after the speaker, with IPv4 first. Neither the speaker's restart nor a later loss of the
// routes begins another wait.
func TestWatch(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		node.Attach("eth0", []string{"192.0.2.1/24", "2001:db8::1/64"}, "192.0.2.254/24", "2001:db8::fe/64")
		var kicks atomic.Int64
		start := func() (*Watch, func()) {
			w := New(Config{Log: slog.New(slog.DiscardHandler), Remote: func() []netip.Addr { return both }, Kick: func() { kicks.Add(1) }})
			stop := nstest.Running(t, w.Run)
			<-w.Looked()
			return w, stop
		}

		w, stop := start()
		if !w.Missing() {
			t.Error("no route is missing")
		}
		stop()
		w, stop = start()
		if !w.Missing() {
			t.Error("no route is missing after a restart before there were any")
		}
		node.Output("ip", "route", "add", "10.244.1.0/24", "via", "192.0.2.2")
		if !w.Missing() {
			t.Error("no route is missing while there is none for IPv6")
		}
		node.Output("ip", "-6", "route", "add", "fd00:10:244:1::/64", "via", "2001:db8::2")
		nstest.Until(t, 5*time.Second, "the routes to be seen", func() bool { return !w.Missing() })
		nstest.Until(t, 5*time.Second, "the record", func() bool { return record().Exists() })
		stop()
		if kicks.Load() != 3 {
			t.Errorf("%d kicks, want one for each change", kicks.Load())
		}

		node.Output("ip", "route", "del", "10.244.1.0/24")
		w, stop = start()
		if w.Missing() {
			t.Error("a restarted speaker waits again")
		}
		stop()
		nstest.Must(t, Forget())
		if record().Exists() {
			t.Error("the record is still there")
		}
	})
}

// TestPatience waits no longer than three minutes for routes which a network does not have on its nodes, and for none while no pod is known
// on another node.
func TestPatience(t *testing.T) {
	for name, tt := range map[string]struct {
		// pods become known, and the family IPv4 gets a route, at these times.
		known, routed time.Duration
		// missing are the times of the changes of Missing.
		missing []time.Duration
	}{
		"never a route":        {known: 0, routed: time.Hour, missing: []time.Duration{0, patience}},
		"a route":              {known: 0, routed: time.Minute, missing: []time.Duration{0, time.Minute}},
		"pods later":           {known: time.Minute, routed: 2 * time.Minute, missing: []time.Duration{time.Minute, 2 * time.Minute}},
		"routes before pods":   {known: time.Minute, routed: 0},
		"no pod elsewhere":     {known: time.Hour, routed: time.Hour},
		"pods at the last end": {known: patience - time.Second, routed: time.Hour, missing: []time.Duration{patience - time.Second, patience}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var changes []time.Duration
				w := New(Config{
					Log: slog.New(slog.DiscardHandler),
					Remote: func() []netip.Addr {
						if time.Since(start) < tt.known {
							return nil
						}
						return []netip.Addr{pod4}
					},
					Kick: func() { changes = append(changes, time.Since(start)) },
				})
				w.hasRoute = func(netip.Addr) bool { return time.Since(start) >= tt.routed }

				if !w.await(t.Context()) || w.Missing() {
					t.Errorf("it still waits, missing %t", w.Missing())
				}
				if !slices.Equal(changes, tt.missing) {
					t.Errorf("changes after %v, want %v", changes, tt.missing)
				}
			})
		})
	}
}
