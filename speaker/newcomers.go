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
	// holders has the Service (UID) of each address as of the last look; nil before the first.
	holders map[netip.Addr]string
	// until is when each newcomer stops being one.
	until map[netip.Addr]time.Time
	// version of the objects at the last look.
	version uint64
}

// see returns the new addresses of the Services in a version of the objects, and when the next of them stops being new; 0
// for never. Nothing is new at the first look: kube-proxy was there before.
func (n *newcomers) see(services []lb.Service, version uint64, now time.Time) (fresh map[lb.Key][]netip.Addr, again time.Duration) {
	before := n.holders
	if before != nil && n.version == version && len(n.until) == 0 {
		return nil, 0 // the death of a node changes no object, and its addresses must not wait
	}
	n.version = version
	n.holders = make(map[netip.Addr]string, len(before))
	until := map[netip.Addr]time.Time{}
	for i := range services {
		s := &services[i]
		for _, a := range s.Addresses {
			n.holders[a] = s.UID
			end := n.until[a]
			if before != nil && before[a] != s.UID {
				end = now.Add(newcomerTime)
			}
			if !end.After(now) || len(until) == mostNewcomers {
				continue
			}
			if fresh == nil {
				fresh = map[lb.Key][]netip.Addr{}
			}
			until[a] = end
			fresh[s.Key] = append(fresh[s.Key], a)
			again = sooner(again, end.Sub(now))
		}
	}
	n.until = until
	return fresh, again
}
