package engine

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/osrg/gobgp/v4/api"
)

// TestNegotiated: only what both ends can do is named.
func TestNegotiated(t *testing.T) {
	family := func(afi api.Family_Afi, safi api.Family_Safi) *api.Family { return &api.Family{Afi: afi, Safi: safi} }
	ipv4, ipv6 := family(api.Family_AFI_IP, api.Family_SAFI_UNICAST), family(api.Family_AFI_IP6, api.Family_SAFI_UNICAST)
	carries := func(f *api.Family) *api.Capability {
		return &api.Capability{Cap: &api.Capability_MultiProtocol{MultiProtocol: &api.MultiProtocolCapability{Family: f}}}
	}
	restart := func(seconds uint32) *api.Capability {
		return &api.Capability{Cap: &api.Capability_GracefulRestart{GracefulRestart: &api.GracefulRestartCapability{Time: seconds}}}
	}
	nextHop := func(of, by *api.Family) *api.Capability {
		return &api.Capability{Cap: &api.Capability_ExtendedNexthop{ExtendedNexthop: &api.ExtendedNexthopCapability{
			Tuples: []*api.ExtendedNexthopCapabilityTuple{{NlriFamily: of, NexthopFamily: by}}}}}
	}
	fourByte := &api.Capability{Cap: &api.Capability_FourOctetAsn{FourOctetAsn: &api.FourOctetASNCapability{}}}
	refresh := &api.Capability{Cap: &api.Capability_RouteRefresh{RouteRefresh: &api.RouteRefreshCapability{}}}
	unknown := &api.Capability{Cap: &api.Capability_Unknown{Unknown: &api.UnknownCapability{Code: 200}}}
	all := []*api.Capability{carries(ipv4), carries(ipv6), fourByte, refresh, nextHop(ipv4, ipv6), restart(20)}
	for _, tt := range []struct {
		name          string
		local, remote []*api.Capability
		want          []string
	}{
		{"all, whatever the order and however often", all, slices.Concat([]*api.Capability{restart(120), unknown, nextHop(ipv4, ipv6), refresh, refresh}, all[:3]),
			[]string{"IPv4 unicast", "IPv6 unicast", "4-byte AS", "route refresh", "extended next hop", "graceful restart (20 s)"}},
		{"an old router", all, nil, []string{"IPv4 unicast"}},
		{"another family", all, []*api.Capability{carries(ipv6)}, []string{"IPv6 unicast"}},
		{"another kind of routes", all, []*api.Capability{carries(family(api.Family_AFI_IP, api.Family_SAFI_MULTICAST))}, nil},
		{"other next hops", all, []*api.Capability{carries(ipv4), nextHop(ipv6, ipv6), nextHop(ipv4, ipv4)}, []string{"IPv4 unicast"}},
		{"graceful restart is off", all[:3], all, []string{"IPv4 unicast", "IPv6 unicast", "4-byte AS"}},
		{"an empty capability", all, []*api.Capability{{}, carries(nil), nextHop(nil, nil)}, nil},
	} {
		if diff := cmp.Diff(tt.want, (abilitiesOf(tt.local) & abilitiesOf(tt.remote)).names()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
