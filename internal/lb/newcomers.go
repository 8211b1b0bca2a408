package lb

import (
	"net/netip"
	"slices"
	"time"
)

// Newcomers are the addresses that Services got a short while ago, or that proxies served until then. kube-proxy may
// not serve them yet.
type Newcomers struct {
	// Services are all Services of the plan that found the newcomers; nil before the first plan.
	Services []*Service
	List     []Newcomer
}

// Newcomer is a new address of a Service.
type Newcomer struct {
	Service Key
	UID     string
	Address netip.Addr
	// Until is when the address stops being new.
	Until time.Time
}

// IsHeldBy reports whether a Service still holds the address. A proxied Service holds none: kube-proxy serves its
// addresses only when proxies no longer do.
func (n Newcomer) IsHeldBy(s *Service) bool {
	return s != nil && !s.Proxied && s.UID == n.UID && slices.Contains(s.Addresses, n.Address)
}

// ByService returns the new addresses of each Service; nil if there are none.
func (n Newcomers) ByService() (out map[Key][]netip.Addr) {
	for _, one := range n.List {
		if out == nil {
			out = map[Key][]netip.Addr{}
		}
		out[one.Service] = append(out[one.Service], one.Address)
	}
	return out
}

// Ends returns when the first address stops being new; the zero Time if there is none.
func (n Newcomers) Ends() (first time.Time) {
	for _, one := range n.List {
		first = Sooner(first, one.Until)
	}
	return first
}
