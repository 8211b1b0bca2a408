package config

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// compileLeaving returns what a Service that is not ours has to give up; nil if it had no addresses of ours. It also
// returns the addresses of other load balancers in its status.
//
// The recorded addresses count besides those in the status: the write that changes a Service's type empties its status
// except for the conditions. Source ranges apply to the addresses in the status; a Service of another type has lost
// them.
func (x serviceReader) compileLeaving(key lb.Key, o *corev1.Service) (*lb.Leaving, []netip.Addr) {
	shown, others := x.Shown(o)
	l := &lb.Leaving{
		Key:       key,
		UID:       string(o.UID),
		Addresses: slices.Clone(shown),
	}
	for _, origin := range readRecord(o.UID, o.Status.Conditions) {
		isReleased := origin.Terms == lb.TermsReleased
		if !isReleased && !slices.Contains(l.Addresses, origin.Address) {
			l.Addresses = append(l.Addresses, origin.Address)
		}
	}
	if len(l.Addresses) == 0 {
		return nil, others
	}

	slices.SortFunc(l.Addresses, netip.Addr.Compare)

	isDelivered := len(shown) > 0 && o.Spec.Type == corev1.ServiceTypeLoadBalancer
	if isDelivered {
		ignored := &problemList{} // a Service that leaves needs no fixes
		l.Served = x.readService(ignored, key, o)
		l.Served.Addresses = shown
		l.Served.Wish = lb.Wish{}
	}

	return l, others
}

// addOthers adds the Services that are not ours to a State: the leaving ones, and the addresses in the status of
// others.
//
// A Service that is being deleted is no longer served, but kube-proxy delivers packets to its addresses until the
// object is gone, so they are not assigned until then. The same is true for Services of another load balancer. During a
// migration their addresses may lie in our pools, and they may have been ours.
func (c *Compiler) addOthers(s *lb.State, opt Options) {
	s.Reserved = map[netip.Addr]lb.Key{}
	if len(s.FloatingIPs) > 0 {
		s.NotServed = map[lb.Key]string{}
	}

	for key, svc := range c.special {
		isOther := svc.service == nil && svc.object.GetDeletionTimestamp() == nil
		if isOther && s.NotServed != nil {
			s.NotServed[key] = string(svc.object.GetUID())
		}
		if svc.extras == nil {
			continue
		}

		if svc.leaving != nil {
			l := *svc.leaving
			if len(l.Served.Addresses) > 0 {
				svc.resolveBackends(opt, &l.Served)
			}
			s.Leaving = append(s.Leaving, l)
		}

		for _, a := range svc.reserved {
			other, isReserved := s.Reserved[a]
			if !isReserved || key.Compare(other) < 0 {
				s.Reserved[a] = key
			}
		}
	}

	slices.SortFunc(s.Leaving, func(a, b lb.Leaving) int {
		return a.Key.Compare(b.Key)
	})
}

// Marked yields the Services of the last run that are not ours and have a finalizer or a condition of ours.
func (c *Compiler) Marked(yield func(lb.Key, Held[corev1.Service]) bool) {
	for key, s := range c.special {
		isMarked := s.service == nil && s.extras != nil && s.isMarked
		if isMarked && !yield(key, s.object) {
			return
		}
	}
}
