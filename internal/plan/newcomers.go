package plan

import (
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// newcomerTime is how long an address is new. kube-proxy serves it by then, even on a busy node.
	newcomerTime = 30 * time.Second
	// maxNewcomers bounds the new addresses that get a head start, and so the cost of a burst.
	maxNewcomers = 256
)

// newcomers returns the new addresses of a State. The first plan finds none: kube-proxy serves the present ones.
func newcomers(s lb.State) lb.Newcomers {
	before := s.Here.Newcomers
	n := lb.Newcomers{Services: s.Services, List: slices.Clone(before.List)}
	if n.Services == nil {
		n.Services = []*lb.Service{}
	}

	n.List = slices.DeleteFunc(n.List, func(one lb.Newcomer) bool { return !one.Until.After(s.Now) })
	if before.Services == nil {
		return n
	}

	lb.Changes(before.Services, n.Services, func(from, to *lb.Service, _, _ int) {
		n.List = withNewcomers(n.List, from, to, s.Now.Add(newcomerTime))
	})
	return n
}

// withNewcomers removes the addresses that a Service lost from a list, and adds those that it got, which are new until
// a time. Either version of the Service may be nil.
func withNewcomers(list []lb.Newcomer, from, to *lb.Service, until time.Time) []lb.Newcomer {
	if from != nil {
		isLost := func(one lb.Newcomer) bool { return one.Service == from.Key && !one.IsHeldBy(to) }
		list = slices.DeleteFunc(list, isLost)
	}
	if to == nil {
		return list
	}

	for _, a := range to.Addresses {
		one := lb.Newcomer{Service: to.Key, UID: to.UID, Address: a, Until: until}
		isNew := one.IsHeldBy(to) && !one.IsHeldBy(from)
		if isNew && len(list) < maxNewcomers {
			list = append(list, one)
		}
	}
	return list
}
