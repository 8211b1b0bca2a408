package engine

import (
	"fmt"

	"github.com/osrg/gobgp/v4/api"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// abilities are the capabilities of one end that matter to an operator (RFC 5492).
type abilities struct {
	// ipv4 and ipv6: unicast routes of the family. families: the end names its families at all.
	ipv4, ipv6, families bool
	// fourByteAS is RFC 6793, routeRefresh RFC 2918, extendedNextHop RFC 8950: IPv4 routes with IPv6 next hops.
	fourByteAS, routeRefresh, extendedNextHop bool
	// gracefulRestart is RFC 4724; restartTime is for how many seconds the other end keeps this end's routes.
	gracefulRestart bool
	restartTime     uint32
}

func abilitiesOf(list []*api.Capability) abilities {
	var out abilities
	for _, c := range list {
		switch c := c.Cap.(type) {
		case *api.Capability_MultiProtocol:
			out.families = true
			out.ipv4 = out.ipv4 || isUnicast(c.MultiProtocol.Family, api.Family_AFI_IP)
			out.ipv6 = out.ipv6 || isUnicast(c.MultiProtocol.Family, api.Family_AFI_IP6)
		case *api.Capability_FourOctetAsn:
			out.fourByteAS = true
		case *api.Capability_RouteRefresh:
			out.routeRefresh = true
		case *api.Capability_GracefulRestart:
			out.gracefulRestart, out.restartTime = true, c.GracefulRestart.Time
		case *api.Capability_ExtendedNexthop:
			for _, t := range c.ExtendedNexthop.Tuples {
				out.extendedNextHop = out.extendedNextHop || isUnicast(t.NlriFamily, api.Family_AFI_IP) && t.NexthopFamily.GetAfi() == api.Family_AFI_IP6
			}
		}
	}
	if !out.families {
		out.ipv4 = true // RFC 4760 section 8: an end that names no family takes IPv4 unicast
	}
	return out
}

// takes reports whether the end takes unicast routes of a family.
func (a abilities) takes(f lb.Family) bool {
	if f == lb.IPv4 {
		return a.ipv4
	}
	return a.ipv6
}

func isUnicast(f *api.Family, afi api.Family_Afi) bool {
	return f.GetAfi() == afi && f.GetSafi() == api.Family_SAFI_UNICAST
}

// negotiated returns what both ends can do, in words and always in the same order. The time of graceful restart is
// this node's: for so long the router keeps its routes.
func negotiated(local, remote []*api.Capability) []string {
	a, b := abilitiesOf(local), abilitiesOf(remote)
	var out []string
	for _, both := range []struct {
		stands bool
		name   string
	}{
		{a.ipv4 && b.ipv4, "IPv4 unicast"},
		{a.ipv6 && b.ipv6, "IPv6 unicast"},
		{a.fourByteAS && b.fourByteAS, "4-byte AS"},
		{a.routeRefresh && b.routeRefresh, "route refresh"},
		{a.extendedNextHop && b.extendedNextHop, "extended next hop"},
		{a.gracefulRestart && b.gracefulRestart, fmt.Sprintf("graceful restart (%d s)", a.restartTime)},
	} {
		if both.stands {
			out = append(out, both.name)
		}
	}
	return out
}
