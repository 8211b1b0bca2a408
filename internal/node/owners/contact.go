package owners

import (
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// behindTime is how long a node is away from the API server, while at least half of the speakers hear it, until it
	// ranks behind.
	behindTime = 30 * time.Second
	// backTime is how long a node goes on to rank behind once it hears the API server again: a node whose connection
	// flaps moves its addresses once.
	backTime = 5 * time.Minute
)

// contact is what this node reports of its connection to the API server.
type contact struct {
	state atomic.Uint32
	// since is when the node lost the API server alone, or found it again.
	since  time.Time
	isAway bool
}

// API returns what this node reports.
func (c *contact) API() lb.API { return lb.API(c.state.Load()) }

// update decides what to report, and reports whether that changed. Age is how long ago this node heard the API server;
// all has the metadata of the members that are alive, the node included.
func (c *contact) update(at time.Time, age time.Duration, node string, all map[string]lb.Member) (changed bool) {
	before := c.API()
	isAway := age > awayTime
	othersHear := hears(node, all)
	if c.isAway != isAway || !othersHear {
		c.isAway, c.since = isAway, at
	}

	next := lb.APIHeard
	if isAway {
		next = lb.APIAway
	}
	if othersHear && c.isBehind(before, at.Sub(c.since)) {
		next = lb.APIBehind
	}
	c.state.Store(uint32(next))
	return next != before
}

// isBehind reports whether the node ranks behind the others that hear the API server, after it was away alone, or back,
// for a time.
func (c *contact) isBehind(before lb.API, duration time.Duration) bool {
	wasBehind := before == lb.APIBehind
	if c.isAway {
		return wasBehind || duration >= behindTime
	}
	return wasBehind && duration < backTime
}

// hears reports whether at least half of the speakers hear the API server, this node not counted among them.
func hears(node string, all map[string]lb.Member) bool {
	heard := 0
	for name, m := range all {
		if name != node && m.API == lb.APIHeard {
			heard++
		}
	}
	return 2*heard >= len(all)
}
