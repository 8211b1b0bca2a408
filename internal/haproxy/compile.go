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
	// Proxies are the addresses of all proxies.
	Proxies map[netip.Addr]bool
	// Certificates are the digests of the pairs with which TLS ends, by Service.
	Certificates map[lb.Key]string
}

// LeftOut is what proxies do not serve, of one port of a Service.
type LeftOut struct {
	Service lb.Key
	Port    uint16
	// Endpoints that nothing may reach through a proxy, or that are too many.
	Endpoints []netip.AddrPort
	// Taken: the pod cannot listen on the port, because another has it.
	Taken bool
}

// Compile returns the Services that proxies serve, ordered, and what is left out of them.
func Compile(state lb.State, endpoints map[lb.Key]map[uint16][]netip.AddrPort, b Bounds) (out []Service, left []LeftOut) {
	held := map[netip.Addr]bool{}
	for _, s := range state.Services {
		for _, a := range s.Addresses {
			held[a] = true
		}
	}
	forbidden := func(e netip.AddrPort) bool {
		a := e.Addr().Unmap()
		return !a.IsValid() || a.Zone() != "" || a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() ||
			a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) || b.Proxies[a] || held[a] || inPool(state.Pools, a)
	}
	taken := map[uint16]bool{}
	for _, p := range b.Own {
		taken[p] = true
	}
	for _, s := range slices.SortedFunc(slices.Values(state.Services), func(a, b lb.Service) int { return a.Key.Compare(b.Key) }) {
		if s.Proxy == nil || s.ProxyRefused {
			continue // no node announces what is refused: it must not cost what the bound of its namespace saves
		}
		service := Service{Key: s.Key, Proxy: *s.Proxy, Access: s.Access, Certificate: b.Certificates[s.Key], Addresses: firsts(s.Addresses, b.Families)}
		for _, p := range s.Ports {
			if p.Protocol != "TCP" || p.NodePort == 0 || len(service.Addresses) == 0 {
				continue
			}
			l := LeftOut{Service: s.Key, Port: p.Port, Taken: taken[p.NodePort]}
			if !l.Taken {
				taken[p.NodePort] = true
				use, not := split(endpoints[s.Key][p.Port], forbidden)
				service.Ports, l.Endpoints = append(service.Ports, Port{Port: p.Port, Listen: p.NodePort, Endpoints: use}), not
			}
			if l.Taken || len(l.Endpoints) > 0 {
				left = append(left, l)
			}
		}
		if len(service.Ports) > 0 && service.usable() {
			out = append(out, service)
		}
	}
	return out, left
}

func inPool(pools []lb.Pool, a netip.Addr) bool {
	return slices.ContainsFunc(pools, func(p lb.Pool) bool {
		return slices.ContainsFunc(p.Ranges, func(r lb.Range) bool { return r.Contains(a) })
	})
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

func split(all []netip.AddrPort, forbidden func(netip.AddrPort) bool) (use, not []netip.AddrPort) {
	for _, e := range all {
		if len(use) == maxEndpoints || e.Port() == 0 || forbidden(e) {
			not = append(not, e)
		} else {
			use = append(use, netip.AddrPortFrom(e.Addr().Unmap(), e.Port()))
		}
	}
	slices.SortFunc(use, netip.AddrPort.Compare)
	return slices.Compact(use), not
}
