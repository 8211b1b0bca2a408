package config

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// compileOther reads a Service that is not ours; nil if there is nothing to know of it.
func (x serviceReader) compileOther(key lb.Key, o *corev1.Service) *extras {
	leaving, reserved := x.compileLeaving(key, o)
	isMarked := isMarked(o)
	if leaving == nil && len(reserved) == 0 && !isMarked {
		return nil
	}

	return &extras{
		leaving:  leaving,
		reserved: reserved,
		isMarked: isMarked,
	}
}

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
		l.Served = new(x.readService(ignored, key, o))
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
func (c *Compiler) addOthers(s *lb.State) {
	s.Reserved = map[netip.Addr]lb.Key{}
	if len(s.FloatingIPs) > 0 {
		s.NotServed = c.notServed()
	}

	for key, svc := range c.services.Results().All() {
		if svc.extras == nil {
			continue
		}

		if svc.leaving != nil {
			s.Leaving = append(s.Leaving, *svc.leaving)
		}

		for _, a := range svc.reserved {
			_, isReserved := s.Reserved[a]
			if !isReserved {
				s.Reserved[a] = key // the first by key
			}
		}
	}
}

// notServed returns the UIDs of the Services that are not ours and not being deleted.
func (c *Compiler) notServed() map[lb.Key]string {
	out := map[lb.Key]string{}
	for key, s := range c.services.Results().All() {
		isOther := s.service == nil && s.object != nil
		if isOther && s.object.GetDeletionTimestamp() == nil {
			out[key] = string(s.object.GetUID())
		}
	}

	return out
}

// Marked yields the Services of the last run that are not ours and have a finalizer or a condition of ours.
func (c *Compiler) Marked(yield func(lb.Key, *corev1.Service) bool) {
	for key, s := range c.services.Results().All() {
		isMarked := s.service == nil && s.extras != nil && s.isMarked
		if isMarked && !yield(key, s.object) {
			return
		}
	}
}
