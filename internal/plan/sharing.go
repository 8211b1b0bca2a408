package plan

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// sharers returns the Services of each address that more than one has.
func sharers(services []lb.Service) map[netip.Addr][]*lb.Service {
	holder := make(map[netip.Addr]*lb.Service, len(services))
	out := map[netip.Addr][]*lb.Service{}
	for i := range services {
		s := &services[i]
		for _, a := range s.Addresses {
			first, taken := holder[a]
			switch {
			case !taken:
				holder[a] = s
			case len(out[a]) == 0:
				out[a] = []*lb.Service{first, s}
			default:
				out[a] = append(out[a], s)
			}
		}
	}
	return out
}

// electionKey is what nodes are ranked for: the lowest address of the Service, so
// that its families have one owner. Where Services that share an address would
// disagree on that, the address itself is, so that it has one owner all the same.
func (c *cluster) electionKey(s *lb.Service, a netip.Addr) uint64 {
	lowest := lowestAddress(s)
	for _, other := range c.sharers[a] {
		if lowestAddress(other) != lowest {
			return hashAddress(a)
		}
	}
	return hashAddress(lowest)
}

func lowestAddress(s *lb.Service) netip.Addr {
	return slices.MinFunc(s.Addresses, netip.Addr.Compare)
}
