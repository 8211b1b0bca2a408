package main

import (
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// behindTime is how long a node is away from the API server, while at least half of the speakers hear it, until it ranks
	// behind.
	behindTime = 30 * time.Second
	// minHold and maxHold bound how long it goes on to do so when it is back. It doubles each time, until none was for calmTime.
	minHold, maxHold = 30 * time.Second, 5 * time.Minute
	calmTime         = 10 * time.Minute
)

// contact is what this node says of its API server.
type contact struct {
	says atomic.Uint32
	// since is when the node was away alone, or back; hold how long it then ranks behind, and left when it last did.
	since time.Time
	away  bool
	hold  time.Duration
	left  time.Time
}

// API returns what this node says of its API server.
func (c *contact) API() lb.API { return lb.API(c.says.Load()) }

// follow finds what to say, and reports whether that is new.
func (c *contact) follow(now time.Time, age time.Duration, node string, all map[string]lb.Member) (changed bool) {
	heard := 0
	for name, m := range all {
		if name != node && m.API == lb.APIHeard {
			heard++
		}
	}
	before := c.API()
	next := c.next(now, age > awayTime, before, 2*heard >= len(all))
	c.says.Store(uint32(next))
	return next != before
}

// next returns what to say after that; most: at least half of the speakers hear the API server.
func (c *contact) next(now time.Time, away bool, before lb.API, most bool) lb.API {
	if c.away != away || !most {
		c.away, c.since = away, now
	}
	behind := before == lb.APIBehind
	switch {
	case away && most && (behind || now.Sub(c.since) >= behindTime):
		if !behind {
			c.hold = min(2*c.hold, maxHold)
			if c.hold == 0 || now.Sub(c.left) >= calmTime {
				c.hold = minHold
			}
		}
		return lb.APIBehind
	case behind && most && now.Sub(c.since) < c.hold:
		return lb.APIBehind
	case behind:
		c.left = now
	}
	if away {
		return lb.APIAway
	}
	return lb.APIHeard
}
