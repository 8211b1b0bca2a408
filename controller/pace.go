package main

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// poolPace is the least time between two writes of a pool that nothing urgent causes: at 1,000 nodes each is sent
// 1,000 times.
const poolPace = 2 * time.Second

// pace is when pools were last written.
type pace map[types.UID]time.Time

// due returns the pools to write now, and when the first of the others may be written; zero if there is none.
func (p pace) due(now time.Time, writes []*poolWrite) (due []*poolWrite, next time.Time) {
	for _, w := range writes {
		at := p[w.pool.UID].Add(poolPace)
		switch {
		case !w.differs():
		case w.urgent() || !now.Before(at):
			due = append(due, w)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	return due, next
}

// after returns the pace after these writes. It forgets pools that are gone.
func (p pace) after(now time.Time, writes []*poolWrite) pace {
	out := pace{}
	for _, w := range writes {
		if last, known := p[w.pool.UID]; w.wrote {
			out[w.pool.UID] = now
		} else if known {
			out[w.pool.UID] = last
		}
	}
	return out
}
