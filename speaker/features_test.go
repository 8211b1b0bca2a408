package main

import (
	"errors"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/kernel"
	"github.com/holdfast-lb/holdfast/internal/node"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"golang.org/x/sys/unix"
)

// missing returns the features that the attempts find missing.
func missing(tries []kernel.Attempt) map[kernel.Feature]error {
	out := map[kernel.Feature]error{}
	for _, one := range tries {
		if err := one.Try(); err != nil {
			out[one.Feature] = err
		}
	}
	return out
}

// TestTries: this kernel has every feature, and a process without capabilities is refused each of them.
func TestTries(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		all := tries(settings{realtime: true, node: node.Settings{Relay: true}})
		if len(all) != 12 {
			t.Errorf("%d features are tried, want all of them", len(all))
		}
		for f, err := range missing(all) {
			t.Errorf("feature %d is missing: %v", f, err)
		}
		nstest.Without(t, unix.CAP_NET_ADMIN, func() {
			for _, f := range []kernel.Feature{
				kernel.PacketFilter, kernel.InternalTraffic, kernel.ConnectionLimits, kernel.DropLogs, kernel.PodRoutes,
				kernel.RelaysIPv4, kernel.RelaysIPv6, kernel.EgressIPv4, kernel.EgressIPv6, kernel.HeadStart,
			} {
				if err := missing(all)[f]; !errors.Is(err, unix.EPERM) {
					t.Errorf("feature %d without NET_ADMIN: %v", f, err)
				}
			}
		})
		few := settings{node: node.Settings{Relay: true}}
		few.node.Options.NoFilter = true
		if got := len(tries(few)); got != 3 {
			t.Errorf("without a filter and real-time priority %d features are tried", got)
		}
	})
}

// TestOtherDataPath: one flag turns off what is for kube-proxy.
func TestOtherDataPath(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "holdfast-system")
	var s settings
	must(t, s.parse([]string{"--node-name=w1", "--data-path=Other"}))
	if s.kubeProxyLivez != "" || s.node.Relay || s.node.Options.Filters() || len(tries(s)) != 2 {
		t.Errorf("livez %q, relays %v, filters %v, %d features are tried", s.kubeProxyLivez, s.node.Relay,
			s.node.Options.Filters(), len(tries(s)))
	}
}
