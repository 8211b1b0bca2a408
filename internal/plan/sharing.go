package plan

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// sharers returns the first Service of each address, and the Services of each address that has more than one.
func sharers(services []lb.Service) (first map[netip.Addr]*lb.Service, all map[netip.Addr][]*lb.Service) {
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
	return holder, out
}

// servicesOf returns the Services of an address.
func (c *cluster) servicesOf(a netip.Addr) []*lb.Service {
	if all := c.sharers[a]; len(all) > 0 {
		return all
	}
	if one := c.holders[a]; one != nil {
		return []*lb.Service{one}
	}
	return nil
}

// electionKey returns the hash for which nodes get scores: that of the Service's lowest address, so that all its
// families have one owner. If Services of its namespace that share the address have different lowest addresses, it is the
// hash of the shared address, so that this has one owner.
func (c *cluster) electionKey(s *lb.Service, a netip.Addr) uint64 {
	lowest := lowestAddress(s)
	for _, other := range c.sharers[a] {
		if other.Key.Namespace == s.Key.Namespace && lowestAddress(other) != lowest {
			return hashAddress(a)
		}
	}
	return hashAddress(lowest)
}

func lowestAddress(s *lb.Service) netip.Addr {
	return slices.MinFunc(s.Addresses, netip.Addr.Compare)
}
