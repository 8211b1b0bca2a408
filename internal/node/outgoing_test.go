package node

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/kernel"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestClosings: what the plan closes, what the kernel lacks, and ports that are used up are reported by Service, with
// the first reason. That a Service has no address of a family is no fault of the node.
func TestClosings(t *testing.T) {
	api, web := lb.Key{Namespace: "ns", Name: "api"}, lb.Key{Namespace: "ns", Name: "web"}
	v4, other := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("192.0.2.8")
	source := func(pod string, service lb.Key, address netip.Addr, closed string) lb.EgressSource {
		return lb.EgressSource{Pod: netip.MustParseAddr(pod), Service: service, Address: address, Closed: closed}
	}
	sources := []lb.EgressSource{
		source("10.0.0.1", web, v4, ""),
		source("10.0.0.2", web, v4, "no slice"),
		source("10.0.0.3", web, v4, ""),
		source("10.0.0.4", api, other, ""),
		source("fd00::1", web, netip.Addr{}, "Service ns/web has no IPv6 address"),
	}
	confined := source("10.0.0.5", api, other, "")
	confined.Confined = "no default route"
	faults := map[netip.Addr]string{netip.MustParseAddr("10.0.0.3"): "no link"}
	const usedUp = "no port of 192.0.2.8 is free for more connections to one destination"
	for name, tt := range map[string]struct {
		faults    map[netip.Addr]string
		exhausted []netip.Addr
		want      []lb.EgressClosing
	}{
		"by the plan": {nil, nil, []lb.EgressClosing{{Service: web, Addresses: 1, Why: "no slice"}}},
		"by a fault":  {faults, nil, []lb.EgressClosing{{Service: web, Addresses: 2, Why: "no slice"}}},
		"without ports": {nil, []netip.Addr{other}, []lb.EgressClosing{
			{Service: api, Addresses: 1, Why: usedUp},
			{Service: web, Addresses: 1, Why: "no slice"},
		}},
	} {
		if diff := cmp.Diff(tt.want, closings(sources, tt.faults, tt.exhausted)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}

	got := closings([]lb.EgressSource{sources[3], confined}, nil, nil)
	if diff := cmp.Diff([]lb.EgressClosing{{Service: api, Addresses: 1, Why: "no default route"}}, got); diff != "" {
		t.Errorf("confined (-want +got):\n%s", diff)
	}

	log := slog.New(slog.DiscardHandler)
	o := NewOutgoing(log, Settings{}, kernel.New(log, nil, func() {}), noLinks, func() {})
	if got := o.closings(); got != nil {
		t.Errorf("before the first plan: %v", got)
	}
	o.sources = sources
	if diff := cmp.Diff([]lb.EgressClosing{{Service: web, Addresses: 1, Why: "no slice"}}, o.closings()); diff != "" {
		t.Errorf("of a plan (-want +got):\n%s", diff)
	}
}
