package main

import (
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// newcomerTime is how long an address is new. kube-proxy serves it by then, even on a busy node.
	newcomerTime = 30 * time.Second
	// maxNewcomers bounds the new addresses that get a head start, and so the cost of a burst.
	maxNewcomers = 256
)

// newcomers are the addresses that Services got a short while ago, or that proxies served until then. kube-proxy may
// not serve them yet.
type newcomers struct {
	// services are the Services of the last update; nil before the first.
	services []*lb.Service
	list     []newcomer
}

// newcomer is a new address of a Service.
type newcomer struct {
	service lb.Key
	uid     string
	address netip.Addr
	until   time.Time
}

// isHeldBy reports whether a Service still holds the address. A proxied Service holds none: kube-proxy serves its
// addresses only when proxies no longer do.
func (n newcomer) isHeldBy(s *lb.Service) bool {
	return s != nil && !s.Proxied && s.UID == n.uid && slices.Contains(s.Addresses, n.address)
}

// update returns the new addresses of the Services, and the time until the next of them stops being new; 0 if there is
// none. The first update finds no new address: kube-proxy serves the present ones.
func (n *newcomers) update(services []*lb.Service, at time.Time) (fresh map[lb.Key][]netip.Addr, again time.Duration) {
	n.list = slices.DeleteFunc(n.list, func(one newcomer) bool { return !one.until.After(at) })
	if n.services != nil {
		lb.Changes(n.services, services, func(before, s *lb.Service, _, _ int) { n.compare(before, s, at) })
	}
	n.services = services
	if services == nil {
		n.services = []*lb.Service{}
	}

	for _, one := range n.list {
		if fresh == nil {
			fresh = map[lb.Key][]netip.Addr{}
		}
		fresh[one.service] = append(fresh[one.service], one.address)
		again = daemon.Sooner(again, one.until.Sub(at))
	}
	return fresh, again
}

// compare removes the addresses that a Service lost, and adds those that it got. Either version may be nil.
func (n *newcomers) compare(before, s *lb.Service, at time.Time) {
	if before != nil {
		n.list = slices.DeleteFunc(n.list, func(one newcomer) bool {
			return one.service == before.Key && !one.isHeldBy(s)
		})
	}
	if s == nil {
		return
	}

	for _, a := range s.Addresses {
		one := newcomer{s.Key, s.UID, a, at.Add(newcomerTime)}
		if one.isHeldBy(s) && !one.isHeldBy(before) && len(n.list) < maxNewcomers {
			n.list = append(n.list, one)
		}
	}
}
