package main

import (
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// ages remembers by a clock that nobody sets when addresses were released, so that
// a quarantine lasts as long as it should when somebody sets the wall clock.
type ages map[release]time.Time

// release is an entry of a pool's memory, with its time as it is written.
type release struct {
	address netip.Addr
	holder  lb.Key
	uid     string
	written int64
}

// read gives the times of the releases in a State, which are dates, the monotonic
// reading of its Now. A date counts as written when it is first seen, but one in
// the future was written by a clock that was wrong: that release was just now.
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
