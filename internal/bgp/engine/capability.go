package engine

import (
	"fmt"

	"github.com/osrg/gobgp/v4/api"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// abilities are the capabilities of one end that matter to an operator (RFC 5492).
type abilities uint8

const (
	ipv4 abilities = 1 << iota // unicast routes of the family
	ipv6
	fourByteAS      // RFC 6793
	routeRefresh    // RFC 2918
	extendedNextHop // RFC 8950: IPv4 routes with IPv6 next hops
	gracefulRestart // RFC 4724
)

var abilityNames = []string{"IPv4 unicast", "IPv6 unicast", "4-byte AS", "route refresh", "extended next hop",
	fmt.Sprintf("graceful restart (%d s)", restartTime)}

func abilitiesOf(list []*api.Capability) (out abilities) {
	namesFamilies := false
	for _, c := range list {
		switch c := c.Cap.(type) {
		case *api.Capability_MultiProtocol:
			namesFamilies = true
			if isUnicast(c.MultiProtocol.Family, api.Family_AFI_IP) {
				out |= ipv4
			}
			if isUnicast(c.MultiProtocol.Family, api.Family_AFI_IP6) {
				out |= ipv6
			}
		case *api.Capability_FourOctetAsn:
			out |= fourByteAS
		case *api.Capability_RouteRefresh:
			out |= routeRefresh
		case *api.Capability_GracefulRestart:
			out |= gracefulRestart
		case *api.Capability_ExtendedNexthop:
			for _, t := range c.ExtendedNexthop.Tuples {
				if isUnicast(t.NlriFamily, api.Family_AFI_IP) && t.NexthopFamily.GetAfi() == api.Family_AFI_IP6 {
					out |= extendedNextHop
				}
			}
		}
	}
	if !namesFamilies {
		out |= ipv4 // RFC 4760 section 8: an end that names no family takes IPv4 unicast
	}
	return out
}

func isUnicast(f *api.Family, afi api.Family_Afi) bool {
	return f.GetAfi() == afi && f.GetSafi() == api.Family_SAFI_UNICAST
}

// takes reports whether the end takes unicast routes of a family.
func (a abilities) takes(f lb.Family) bool {
	return f == lb.IPv4 && a&ipv4 != 0 || f == lb.IPv6 && a&ipv6 != 0
}

// names are in words, always in the same order. The time of graceful restart is this node's: for so long the router keeps
// its routes.
func (a abilities) names() (out []string) {
	for i, name := range abilityNames {
		if a&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return out
}
