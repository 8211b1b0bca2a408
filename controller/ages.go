package main

import (
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// ages records by the monotonic clock when addresses were released, so that changes
// of the wall clock do not affect the length of a quarantine.
type ages map[release]time.Time

// release is a recorded release of a pool, with its time as written.
type release struct {
	address netip.Addr
	holder  lb.Key
	uid     string
	written int64
}

// read converts the times of the releases in a State, which are dates, to the
// monotonic clock of its Now. A date counts as written when it is first seen. A date
// in the future comes from a wrong clock; that release counts as of now.
func (a *ages) read(s *lb.State) {
	before := *a
	*a = make(ages, len(before))
	for i := range s.Pools {
		for j := range s.Pools[i].Released {
			r := &s.Pools[i].Released[j]
			k := release{r.Address, r.Holder, r.UID, r.Time.UnixNano()}
			at, known := before[k]
			if !known {
				at = s.Now.Add(min(0, r.Time.Sub(s.Now)))
			}
			(*a)[k], r.Time = at, at
		}
	}
}
