package unnumbered

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"
)

const (
	// maxRouters is how many routers of a link are remembered: more than one are a mistake, or an attack. Further ones wait until
	// one is forgotten, so that a flood of invented ones does not become one of log lines and plans.
	maxRouters = 8
	// silence is longer than the time between two advertisements of a router, as FRR sends them: 10 s.
	silence = 12 * time.Second
	// remembered is how long a router that is not the link's is remembered: three of its advertisements.
	remembered = 36 * time.Second
	// MAX_RTR_SOLICITATIONS and RTR_SOLICITATION_INTERVAL of RFC 4861 section 10.
	maxSolicitations = 3
	solicitInterval  = 4 * time.Second
)

// routers is what is known of the routers on one link. The first router heard is the link's. It stays that for as long
// as it answers: two routers must not take turns. It is replaced when another one is heard, and it answers no
// solicitation. That may also be because a flood drowned its answers: so it is not while BGP has a session with it, which ends
// by itself when the router is gone.
type routers struct {
	// heard is when each router was heard last.
	heard map[netip.Addr]time.Time
	// present is the link's router; the zero Addr if none was heard yet.
	present netip.Addr
	// asked counts the solicitations since one began to be looked for. The next one is due at next, or the end of the last
	// one's time; the zero Time if no answer is awaited.
	asked int
	next  time.Time
}

// newRouters knows no router, and asks for one at once.
func newRouters(moment time.Time) *routers {
	return &routers{heard: map[netip.Addr]time.Time{}, next: moment}
}

// hear takes an advertisement of a router.
func (r *routers) hear(moment time.Time, from netip.Addr) {
	if _, known := r.heard[from]; known || len(r.heard) < maxRouters {
		r.heard[from] = moment
	}
	switch {
	case !r.present.IsValid(), from == r.present:
		r.present, r.next = from, time.Time{}
	case !r.asking() && moment.Sub(r.heard[r.present]) > silence:
		r.ask(moment)
	}
}

// ask begins to ask for the present router, or for any.
func (r *routers) ask(moment time.Time) { r.asked, r.next = 0, moment }

// asking reports whether an answer may still come.
func (r *routers) asking() bool { return !r.next.IsZero() }

// tick reports whether a solicitation is due, and replaces a router that answered none, unless established: BGP has a session
// with it.
func (r *routers) tick(moment time.Time, established bool) (solicit bool) {
	maps.DeleteFunc(r.heard, func(a netip.Addr, at time.Time) bool { return a != r.present && moment.Sub(at) > remembered })
	if !r.asking() || moment.Before(r.next) {
		return false
	}
	if r.asked < maxSolicitations {
		r.asked++
		r.next = moment.Add(solicitInterval)
		return true
	}
	if other := r.latest(); other != r.present && !established {
		delete(r.heard, r.present)
		r.present = other
	}
	r.next = time.Time{}
	return false
}

// others are the routers beside the present one, sorted.
func (r *routers) others() []netip.Addr {
	all := slices.SortedFunc(maps.Keys(r.heard), netip.Addr.Compare)
	return slices.DeleteFunc(all, func(a netip.Addr) bool { return a == r.present })
}

// latest is the router that was heard last; the zero Addr if there is none.
func (r *routers) latest() netip.Addr {
	if len(r.heard) == 0 {
		return netip.Addr{}
	}
	return slices.MaxFunc(slices.Collect(maps.Keys(r.heard)), func(a, b netip.Addr) int { return cmp.Or(r.heard[a].Compare(r.heard[b]), a.Compare(b)) })
}
