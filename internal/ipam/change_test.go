package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// change makes one change such as users, administrators or accidents make.
func (h *history) change() {
	s := &h.state
	s.Services, s.Pools, s.FloatingIPs, s.Leaving = slices.Clone(s.Services), slices.Clone(s.Pools), slices.Clone(s.FloatingIPs), slices.Clone(s.Leaving)
	if s.Namespaces == nil {
		s.Namespaces = map[string]map[string]string{"a": {"team": "a"}, "b": {"team": "b"}}
	}
	what := h.IntN(30)
	if h.mild && len(s.Pools) < 2 {
		what = 29
	} else if h.mild && what > 15 && !h.oneIn(4) {
		what = pick(h, 0, 8)
	}
	switch {
	case what < 8 || len(s.Services) == 0:
		h.born++
		svc := lb.Service{
			Key:     lb.Key{Namespace: pick(h, "a", "a", "b", "unknown"), Name: fmt.Sprintf("s%03d", h.born)},
			Created: time.Unix(int64(h.born/3), 0),
		}
		if h.oneIn(3) {
			svc.UID = fmt.Sprintf("u%03d", h.born)
		}
		if h.oneIn(8) { // restored, with what it had
			svc.AssignedFrom = map[netip.Addr]string{h.address(): "p0"}
		}
		h.want(&svc)
		h.add(svc)
	case what < 12:
		h.leave(h.IntN(len(s.Services)))
	case what < 16:
		h.want(&s.Services[h.IntN(len(s.Services))])
	case what == 16:
		// A stale write or another controller.
		s.Services[h.IntN(len(s.Services))].Addresses = pick(h, nil, s.Services[h.IntN(len(s.Services))].Addresses, []netip.Addr{h.address(), h.address()})
		h.alien = true
	case what == 17:
		s.Reserved = map[netip.Addr]lb.Key{h.address(): {Namespace: "z", Name: "z"}}
		h.alien = true
	case what == 18: // a restore: statuses are gone
		for i := range s.FloatingIPs {
			f := &s.FloatingIPs[i]
			for _, addr := range f.Addresses { // as config reads the record
				same := func(a netip.Addr) bool { return a.BitLen() == addr.BitLen() }
				if slices.Contains(f.Families, lb.FamilyOf(addr)) && !slices.ContainsFunc(f.Wanted, same) {
					f.Wanted = append(slices.Clone(f.Wanted), addr)
				}
			}
			s.FloatingIPs[i].Addresses, s.FloatingIPs[i].BoundTo, s.FloatingIPs[i].BoundUID = nil, lb.Key{}, ""
		}
		for i := range s.Services {
			s.Services[i].Addresses = nil
		}
	case what < 25:
		h.editFloating()
	default:
		h.editPools()
	}
	h.name()
}

// name finds out which Services that FloatingIPs name exist.
func (h *history) name() {
	s := &h.state
	for i := range s.FloatingIPs {
		f := &s.FloatingIPs[i]
		key := lb.Key{Namespace: f.Key.Namespace, Name: f.ServiceName}
		f.ServiceGone = f.ServiceName != "" && find(s.Services, func(svc lb.Service) bool { return svc.Key == key }) == nil &&
			!slices.ContainsFunc(s.Leaving, func(l lb.Leaving) bool { return l.Key == key })
	}
}

func (h *history) add(svc lb.Service) {
	h.state.Services = append(h.state.Services, svc)
	slices.SortFunc(h.state.Services, func(a, b lb.Service) int { return a.Key.Compare(b.Key) })
}

// leave deletes a Service or changes its type. Some come back.
func (h *history) leave(i int) {
	s := &h.state
	svc := s.Services[i]
	s.Services = slices.Delete(s.Services, i, i+1)
	if len(svc.Addresses) > 0 && !h.oneIn(10) {
		s.Leaving = append(s.Leaving, lb.Leaving{Key: svc.Key, UID: svc.UID, Addresses: svc.Addresses})
	}
}

// want changes what a Service requests, in any way the API allows. In mild histories most request just an address.
func (h *history) want(svc *lb.Service) {
	if h.mild && !h.oneIn(4) {
		svc.Families = pick(h, []lb.Family{lb.IPv4}, []lb.Family{lb.IPv6})
		svc.FamilyPolicy, svc.Local, svc.RequestedPool, svc.RequestedAddresses, svc.Problem, svc.Wish = lb.SingleStack, false, "", nil, nil, lb.Wish{}
		return
	}
	svc.Families = pick(h, []lb.Family{lb.IPv4}, []lb.Family{lb.IPv6}, []lb.Family{lb.IPv4, lb.IPv6}, []lb.Family{lb.IPv6, lb.IPv4}, nil)
	svc.FamilyPolicy = pick(h, lb.SingleStack, lb.PreferDualStack, lb.RequireDualStack)
	svc.Labels = pick(h, nil, map[string]string{"app": "x"})
	svc.Ports = pick(h, nil, []lb.Port{{Protocol: "TCP", Port: 80}}, []lb.Port{{Protocol: "UDP", Port: 80}})
	svc.Local = h.oneIn(4)
	svc.RequestedPool, svc.RequestedAddresses, svc.Problem = "", nil, nil
	svc.Wish = lb.Wish{Internal: h.oneIn(8), Renew: h.oneIn(8), Backend: pick(h, "", "x", "y")}
	if h.oneIn(3) {
		svc.RequestedPool = pick(h, "p0", "p1", "p2", "p3", "nowhere")
	}
	if h.oneIn(3) {
		svc.RequestedAddresses = []netip.Addr{h.address()}
	}
	if h.oneIn(3) {
		svc.SharingKey = pick(h, "k", "l")
	} else if h.oneIn(8) {
		svc.LoadBalancerID, svc.MaxShared = fmt.Sprintf("u%03d", 1+h.IntN(h.born)), 2
	}
	if h.oneIn(6) {
		svc.Class = pick(h, "gold", "silver")
	}
	if h.oneIn(10) {
		svc.PoolWishes = []lb.PoolWish{{Text: "network", Pools: pick(h, nil, []string{"p0", "p1"}), Reason: lb.UnknownNetwork}}
	}
	if h.oneIn(6) {
		svc.FloatingIP = pick(h, "f0", "f1", "f2")
	}
	svc.KeepFloatingIP = h.oneIn(10)
	if h.oneIn(15) {
		svc.Problem = &lb.Problem{Reason: lb.InvalidRequest, Message: "garbage"}
	}
}

// editFloating makes, edits or deletes a FloatingIP.
func (h *history) editFloating() {
	s := &h.state
	key := lb.Key{Namespace: pick(h, "a", "b"), Name: pick(h, "f0", "f1", "f2")}
	i := slices.IndexFunc(s.FloatingIPs, func(f lb.FloatingIP) bool { return f.Key == key })
	if i >= 0 && h.oneIn(2) {
		s.FloatingIPs[i].Deleting = true
		return
	}
	f := lb.FloatingIP{Key: key, UID: fmt.Sprintf("f%d", h.born), Created: time.Unix(int64(h.born/3), 0)}
	if i >= 0 {
		f = s.FloatingIPs[i]
	}
	f.Families = pick(h, []lb.Family{lb.IPv4}, []lb.Family{lb.IPv6}, []lb.Family{lb.IPv4, lb.IPv6})
	f.Pool = pick(h, "", "", "p0", "p1")
	f.Wanted = pick(h, nil, nil, []netip.Addr{h.address()})
	f.Wanted = slices.DeleteFunc(slices.Clone(f.Wanted), func(a netip.Addr) bool { return !slices.Contains(f.Families, lb.FamilyOf(a)) })
	f.Delete = h.oneIn(3)
	f.ServiceName = ""
	if h.oneIn(3) && len(s.Services) > 0 {
		f.ServiceName = s.Services[h.IntN(len(s.Services))].Key.Name
	}
	if i >= 0 {
		s.FloatingIPs[i] = f
		return
	}
	s.FloatingIPs = append(s.FloatingIPs, f)
	slices.SortFunc(s.FloatingIPs, func(a, b lb.FloatingIP) int { return a.Key.Compare(b.Key) })
}

// editPools redistributes the addresses of a few blocks among the pools: ranges shrink,
// grow, vanish and move between pools, and stay disjoint at every step.
func (h *history) editPools() {
	pools := make([]lb.Pool, 1+h.IntN(4))
	for i := range pools {
		pools[i] = lb.Pool{
			Name: fmt.Sprintf("p%d", i), AutoAssign: !h.oneIn(4), AvoidBuggyIPs: h.oneIn(3), Deleting: h.oneIn(6),
			Allocation: pick(h, nil, nil, &lb.Allocation{Priority: h.IntN(3)}, h.allocation()),
		}
		if old := find(h.state.Pools, func(p lb.Pool) bool { return p.Name == pools[i].Name }); old != nil {
			pools[i].Released, pools[i].Retained = old.Released, old.Retained
		}
		pools[i].Internal, pools[i].ShareAcross, pools[i].MaxServices = h.oneIn(5), h.oneIn(2), pick(h, 0, 0, 2)
		pools[i].Classes = pick(h, nil, nil, []string{"gold"})
		pools[i].ReuseDelay = pick(h, 0, time.Minute, time.Hour)
		if h.oneIn(4) {
			pools[i].Quota = map[lb.Family]int{pick(h, lb.IPv4, lb.IPv6): h.IntN(3)}
		}
		if p := &pools[i]; h.mild && !h.oneIn(4) {
			p.AutoAssign, p.Deleting, p.Internal, p.Classes, p.Allocation = true, false, false, nil, nil
		}
	}
	for _, block := range []string{"10.0.0.254", "10.0.1.3", "2001:db8::", "2001:db8::ff00", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc"} {
		r := lb.Range{From: netip.MustParseAddr(block)}
		r.To = r.From
		for range h.IntN(4) {
			r.To = r.To.Next()
		}
		if i := h.IntN(len(pools) + 1); i < len(pools) {
			pools[i].Ranges = append(pools[i].Ranges, r)
		}
	}
	h.Shuffle(len(pools), func(i, j int) { pools[i], pools[j] = pools[j], pools[i] })
	h.state.Pools = pools
}

func (h *history) allocation() *lb.Allocation {
	a := &lb.Allocation{Priority: h.IntN(3), ByNamespace: h.oneIn(2)}
	if a.ByNamespace {
		a.Namespaces = pick(h, nil, []string{"a"})
		a.NamespaceSelectors = pick(h, nil, []lb.Selector{{{Key: "team", Operator: lb.NotIn, Values: []string{"a"}}}})
	}
	if h.oneIn(2) {
		a.ServiceSelectors = []lb.Selector{{{Key: "app", Operator: lb.Exists}}}
	}
	return a
}

// address returns an address in or near the blocks of editPools.
func (h *history) address() netip.Addr {
	a := netip.MustParseAddr(pick(h, "10.0.0.254", "10.0.1.3", "2001:db8::", "2001:db8::ff00", "203.0.113.1"))
	for range h.IntN(3) {
		a = a.Next()
	}
	return a
}
