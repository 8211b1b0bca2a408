package main

import (
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// newcomerTime is how long an address is new: kube-proxy serves it by then, also on a busy node.
	newcomerTime = 30 * time.Second
	// mostNewcomers bounds the new addresses that get a head start, so that a burst costs no more than they do.
	mostNewcomers = 256
)

// newcomers are the addresses that Services got a short while ago, and that kube-proxy may not serve yet.
type newcomers struct {
	// held is what all Services held at the last look; nil before the first.
	held map[holding]bool
	// until is when each newcomer stops being one.
	until map[holding]time.Time
	// version of the objects at the last look.
	version uint64
}

// holding is an address of a Service, by its UID. Services may share an address.
type holding struct {
	address netip.Addr
	service string
}

// see returns the new addresses of the Services in a version of the objects, and when the next of them stops being new; 0
// for never. Nothing is new at the first look: kube-proxy was there before.
func (n *newcomers) see(services []lb.Service, version uint64, now time.Time) (fresh map[lb.Key][]netip.Addr, again time.Duration) {
	before := n.held
	if before != nil && n.version == version && len(n.until) == 0 {
		return nil, 0 // the death of a node changes no object, and its addresses must not wait
	}
	n.version = version
	n.held = make(map[holding]bool, len(before))
	until := map[holding]time.Time{}
	for i := range services {
		s := &services[i]
		for _, a := range s.Addresses {
			h := holding{a, s.UID}
			n.held[h] = true
			end := n.until[h]
			if before != nil && !before[h] {
				end = now.Add(newcomerTime)
			}
			if !end.After(now) || len(until) == mostNewcomers {
				continue
			}
			if fresh == nil {
				fresh = map[lb.Key][]netip.Addr{}
			}
			until[h] = end
			fresh[s.Key] = append(fresh[s.Key], a)
			again = sooner(again, end.Sub(now))
		}
	}
	n.until = until
	return fresh, again
}
