package ipam

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// subject is a Service in this decision, or a FloatingIP in the guise of one.
type subject struct {
	*lb.Service
	// number counts Services from 1, floating counts FloatingIPs from 1; the other is 0.
	number, floating int32
	// place is the Service's index in State.Services.
	place int
	// held is what it has by now, by the index of its family; the zero Addr is none.
	held []netip.Addr
	// key under which it may share an address; "" shares none.
	key string
	// joins: the Service takes an address that is held under its key, or none.
	joins bool
	// dissolved: a FloatingIP that is being deleted and is not used.
	dissolved bool
}

// party names a subject, or somebody who is none.
type party struct {
	lb.Key
	floating bool
}

func (p party) String() string {
	if p.floating {
		return "FloatingIP " + p.Key.String()
	}
	return "Service " + p.Key.String()
}

func (s *subject) party() party { return party{s.Key, s.floating > 0} }

func (s *subject) family(addr netip.Addr) int {
	if !addr.IsValid() {
		return -1
	}
	return slices.Index(s.Families, lb.FamilyOf(addr))
}

// remembers reports whether the Service bears the memory of an address that its status has not.
func (s *subject) remembers() bool {
	for addr := range s.AssignedFrom {
		if !slices.Contains(s.Addresses, addr) {
			return true
		}
	}
	return false
}

// subjects makes one of every Service to decide for and every FloatingIP, and finds out which keys matter.
func (a *assigner) subjects(places []int) {
	a.services = make([]subject, len(places))
	families := 0
	for _, place := range places {
		families += len(a.state.Services[place].Families)
	}
	all := make([]netip.Addr, families)
	for i, place := range places {
		svc := &a.state.Services[place]
		n := len(svc.Families)
		a.services[i] = newSubject(svc, int32(i+1), place, all[:n:n])
		all = all[n:]
		if s := &a.services[i]; s.key != "" && (s.joins || s.SharingKey != "") {
			a.shared[s.key] = newRing()
		}
	}
	a.floating = make([]subject, len(a.state.FloatingIPs))
	for i := range a.floating {
		guise := a.guise(&a.state.FloatingIPs[i])
		a.floating[i] = subject{Service: guise, floating: int32(i + 1), held: make([]netip.Addr, len(guise.Families))}
	}
	a.claimable = newClaimable(a.state.FloatingIPs)
}

func newSubject(svc *lb.Service, number int32, place int, held []netip.Addr) subject {
	s := subject{Service: svc, number: number, place: place, held: held}
	switch {
	case svc.SharingKey != "":
		s.key = "key " + svc.SharingKey
	case svc.LoadBalancerID != "" && svc.LoadBalancerID != svc.UID:
		s.key, s.joins = "id "+svc.LoadBalancerID, true
	case svc.UID != "":
		s.key = "id " + svc.UID
	}
	return s
}

// guise is a FloatingIP as a Service that asks for the same. It is as internal
// as the pool that it asks for, or that its addresses lie in.
func (a *assigner) guise(f *lb.FloatingIP) *lb.Service {
	svc := &lb.Service{
		Key: f.Key, UID: f.UID, Labels: f.Labels, Created: f.Created,
		Families: f.Families, FamilyPolicy: lb.SingleStack,
		RequestedAddresses: f.Wanted, RequestedPool: f.Pool, Problem: f.Problem,
		Addresses: f.Addresses, AssignedFrom: f.AssignedFrom,
	}
	for _, p := range a.state.Pools {
		svc.Internal = svc.Internal || p.Name == f.Pool && p.Internal
	}
	if f.Pool == "" {
		for _, addr := range slices.Concat(f.Addresses, f.Wanted) {
			if s := a.index.find(addr); s != nil {
				svc.Internal = s.Internal
			}
		}
	}
	return svc
}
