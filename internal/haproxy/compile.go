package haproxy

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Bounds are what the proxy's own pod and the cluster allow.
type Bounds struct {
	// Families that the pod has.
	Families []lb.Family
	// Own are ports on which the pod listens for other purposes.
	Own []uint16
	// Certificates are the digests of the pairs with which TLS ends, by Service.
	Certificates map[lb.Key]string
}

// Compile returns the Services that proxies serve, ordered, and the numbers on which the pod cannot listen for one, as another has them.
func Compile(all []*lb.Service, endpoints map[lb.Key]map[uint16][]netip.AddrPort, b Bounds) (out []Service, clash []uint16) {
	taken := map[uint16]bool{}
	for _, p := range b.Own {
		taken[p] = true
	}
	for _, s := range slices.SortedFunc(slices.Values(all), func(a, b *lb.Service) int { return a.Key.Compare(b.Key) }) {
		if s.Proxy == nil || s.ProxyRefused {
			continue // no node announces what is refused: it must not cost what the bound of its namespace saves
		}
		service := Service{Key: s.Key, Proxy: *s.Proxy, Access: s.Access, Certificate: b.Certificates[s.Key], Addresses: firsts(s.Addresses, b.Families)}
		for _, p := range s.Ports {
			if p.Protocol != "TCP" || p.NodePort == 0 || len(service.Addresses) == 0 {
				continue
			}
			if taken[p.NodePort] {
				clash = append(clash, p.NodePort)
				continue
			}
			taken[p.NodePort] = true
			service.Ports = append(service.Ports, Port{Port: p.Port, Listen: p.NodePort, Endpoints: endpoints[s.Key][p.Port]})
		}
		if len(service.Ports) > 0 && service.usable() {
			out = append(out, service)
		}
	}
	return out, clash
}

// firsts returns the first address of each family that the pod has.
func firsts(addresses []netip.Addr, families []lb.Family) (out []netip.Addr) {
	for _, f := range families {
		if i := slices.IndexFunc(addresses, func(a netip.Addr) bool { return lb.FamilyOf(a) == f }); i >= 0 {
			out = append(out, addresses[i])
		}
	}
	return out
}
