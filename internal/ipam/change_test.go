package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// change makes one change, as users, administrators or accidents do.
func (h *history) change() { h.edit(h.happen) }

func (h *history) happen() {
	s := &h.world
	if s.Namespaces == nil {
		s.Namespaces = map[string]map[string]string{"a": {"team": "a"}, "b": {"team": "b"}}
	}
	if h.hostile && len(s.Services) > 0 && h.oneIn(3) {
		s.Services[h.IntN(len(s.Services))].Recall = h.forged()
	}
	what := h.IntN(35)
	if h.mild && len(s.Pools) < 2 {
		what = 31
	} else if h.mild && what > 15 && !h.oneIn(4) {
		what = pick(h, 0, 8, 16)
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
			svc.Recall = h.forged()
		}
		h.want(&svc)
		h.add(svc)
	case what < 12:
		h.leave(h.IntN(len(s.Services)))
	case what < 16:
		h.want(&s.Services[h.IntN(len(s.Services))].Service)
	case what < 18:
		h.flip(&s.Services[h.IntN(len(s.Services))])
	case what == 18:
		s.Namespaces = map[string]map[string]string{"a": {"team": pick(h, "a", "b")}, "b": {"team": "b"}}
	case what == 19 && h.calm:
		return
	case what == 19 && h.oneIn(2):
		// A stale write or another controller.
		s.Services[h.IntN(len(s.Services))].Addresses = pick(h, nil, s.Services[h.IntN(len(s.Services))].Addresses,
			[]netip.Addr{h.address(), h.address()})
		h.alien = true
	case what == 19:
		s.Reserved = map[netip.Addr]lb.Key{h.address(): {Namespace: "z", Name: "z"}}
		h.alien = true
	case what == 20: // a restore: statuses are gone, records are not
		for i := range s.FloatingIPs {
			s.FloatingIPs[i].Addresses = nil
			s.FloatingIPs[i].Record = nil
			s.FloatingIPs[i].BoundTo = lb.Key{}
			s.FloatingIPs[i].BoundUID = ""
		}
		for i := range s.Services {
			s.Services[i].Addresses, s.Services[i].Record, s.Services[i].condition = nil, nil, ""
		}
	case what < 27:
		h.editFloating()
	case what < 32:
		h.editPools()
	default:
		h.replacePool()
	}
}

// forged returns an annotation that any user can write: addresses of any pool and of any object.
func (h *history) forged() lb.Origins {
	out := wish(nil,
		lb.Origins{{Address: h.address(), Pool: pick(h, "p0", "p1", "elsewhere")}, {Address: h.address(), Pool: "p0"}})
	return out[:h.IntN(1+len(out))]
}

func (h *history) add(svc lb.Service) {
	h.Services = append(h.Services, serviceObject{Service: svc, served: true})
	slices.SortFunc(h.Services, byID)
}

// leave deletes a Service. It stays until its finalizer is removed, which another client may do.
func (h *history) leave(i int) {
	if svc := &h.Services[i]; svc.finalizer && !h.oneIn(10) {
		svc.deleting = true
		return
	}
	h.Services = slices.Delete(h.Services, i, i+1)
}

// flip changes whether a Service is ours. A change of its type empties its status; a change of its class does not.
func (h *history) flip(svc *serviceObject) {
	if svc.served {
		svc.foreign = h.oneIn(3)
		if !svc.foreign || h.oneIn(2) {
			svc.Addresses = nil
		}
	} else if !svc.foreign {
		svc.Addresses = nil
	}
	svc.served = !svc.served
}

// want changes the requests of a Service, in any way that the API allows. In mild histories most Services request just
// an address.
func (h *history) want(svc *lb.Service) {
	if h.mild && !h.oneIn(4) {
		svc.Families = pick(h, []lb.Family{lb.IPv4}, []lb.Family{lb.IPv6})
		svc.FamilyPolicy = lb.SingleStack
		svc.Local = false
		svc.RequestedPool = ""
		svc.RequestedAddresses = nil
		svc.Problem = nil
		svc.Wish = lb.Wish{}
		return
	}
	svc.Families = pick(h, []lb.Family{lb.IPv4}, []lb.Family{lb.IPv6}, []lb.Family{lb.IPv4, lb.IPv6},
		[]lb.Family{lb.IPv6, lb.IPv4}, nil)
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
		svc.PoolWishes = []lb.PoolWish{{
			Text: "network", Pools: pick(h, nil, []string{"p0", "p1"}), Reason: lb.UnknownNetwork,
		}}
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
	s := &h.world
	key := lb.Key{Namespace: pick(h, "a", "b"), Name: pick(h, "f0", "f1", "f2")}
	i := slices.IndexFunc(s.FloatingIPs, func(f floatingObject) bool { return f.Key == key })
	if i >= 0 && h.oneIn(2) {
		if s.FloatingIPs[i].Deleting = true; !s.FloatingIPs[i].finalizer {
			s.FloatingIPs = slices.Delete(s.FloatingIPs, i, i+1)
		}
		return
	}
	f := floatingObject{FloatingIP: lb.FloatingIP{
		Key: key, UID: fmt.Sprintf("f%d", len(h.worlds)), Created: time.Unix(int64(h.born/3), 0),
	}}
	if i >= 0 {
		f = s.FloatingIPs[i]
	}
	f.Families = pick(h, []lb.Family{lb.IPv4}, []lb.Family{lb.IPv6}, []lb.Family{lb.IPv4, lb.IPv6})
	f.Pool = pick(h, "", "", "p0", "p1")
	f.Wanted = pick(h, nil, nil, []netip.Addr{h.address()})
	f.Wanted = slices.DeleteFunc(slices.Clone(f.Wanted),
		func(a netip.Addr) bool { return !slices.Contains(f.Families, lb.FamilyOf(a)) })
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
	slices.SortFunc(s.FloatingIPs, byID)
}

// editPools redistributes the addresses of a few blocks among the pools: ranges shrink,
// grow, vanish and move between pools, and stay disjoint at every step.
func (h *history) editPools() {
	pools := make([]poolObject, 1+h.IntN(4))
	for i := range pools {
		pools[i].age = h.IntN(4)
		pools[i].Pool = lb.Pool{
			Name: fmt.Sprintf("p%d", i), AutoAssign: !h.oneIn(4), AvoidBuggyIPs: h.oneIn(3), Deleting: h.oneIn(6),
			Allocation: pick(h, nil, nil, &lb.Allocation{Priority: h.IntN(3)}, h.allocation()),
		}
		if old := get(h.Pools, pools[i].id()); old != nil {
			pools[i].Released, pools[i].Retained = old.Released, old.Retained
		}
		pools[i].Internal, pools[i].ShareAcross, pools[i].MaxServices = h.oneIn(5), h.oneIn(2), pick(h, 0, 0, 2)
		pools[i].Classes = pick(h, nil, nil, []string{"gold"})
		pools[i].ReuseDelay = pick(h, 0, time.Minute, time.Hour)
		if h.oneIn(4) {
			pools[i].Quota = map[lb.Family]int{pick(h, lb.IPv4, lb.IPv6): h.IntN(3)}
		}
		if old := get(h.Pools, pools[i].id()); pools[i].Deleting || old != nil && old.finalizer {
			pools[i].finalizer = true
		}
		if p := &pools[i]; h.mild && !h.oneIn(4) {
			p.AutoAssign = true
			p.Deleting = false
			p.Internal = false
			p.Classes = nil
			p.Allocation = nil
		}
	}
	for _, block := range []string{
		"10.0.0.254", "10.0.1.3", "2001:db8::", "2001:db8::ff00", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc",
	} {
		r := lb.Range{From: netip.MustParseAddr(block)}
		r.To = r.From
		for range h.IntN(4) {
			r.To = r.To.Next()
		}
		if i := h.IntN(len(pools) + 1); i < len(pools) {
			pools[i].Ranges = append(pools[i].Ranges, r)
			if h.oneIn(3) {
				pools[i].Withheld = withheld(lb.Range{From: r.From, To: pick(h, r.From, r.To)})
			}
		}
	}
	h.Pools = pools
}

// replacePool makes a pool with the addresses of another one, or with some of them, and deletes that one, as if it was
// renamed or split.
func (h *history) replacePool() {
	if len(h.Pools) == 0 {
		return
	}
	old := pick(h, h.Pools...)
	h.replaced++
	fresh := poolObject{age: 9, Pool: lb.Pool{
		Name: fmt.Sprintf("r%d", h.replaced), AutoAssign: true, Ranges: slices.Clone(old.Ranges), AvoidBuggyIPs: h.oneIn(3),
		Withheld: old.Withheld, PoolTerms: lb.PoolTerms{ReuseDelay: old.ReuseDelay, Internal: old.Internal != h.oneIn(5)},
	}}
	if len(fresh.Ranges) > 1 && h.oneIn(3) {
		fresh.Ranges = fresh.Ranges[1:]
	}
	if h.oneIn(4) {
		fresh.Quota = map[lb.Family]int{lb.IPv4: h.IntN(2)}
	}
	if h.oneIn(3) {
		fresh.Aliases = []string{old.Name}
	}
	h.Pools = append(h.Pools, fresh)
	slices.SortFunc(h.Pools, byID)
	if old.finalizer {
		get(h.Pools, old.id()).Deleting = true
		return
	}
	h.Pools = slices.DeleteFunc(h.Pools, func(p poolObject) bool { return p.Name == old.Name })
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
