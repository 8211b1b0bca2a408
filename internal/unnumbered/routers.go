package unnumbered

import (
	"net/netip"
	"time"
)

const (
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
// solicitation. That may also be because a flood drowned its answers: so it is not while BGP has a session with it,
// which ends by itself when the router is gone.
type routers struct {
	// present is the link's router, heard last at heard; the zero Addr if none was heard yet.
	present netip.Addr
	heard   time.Time
	// other is one beside it: a mistake, or an attack. No further one is remembered while it is heard, so that a flood
	// of invented routers does not become one of log lines and plans.
	other      netip.Addr
	otherHeard time.Time
	// asked counts the solicitations since one began to be looked for. The next one is due at next, or the end of the
	// last one's time; the zero Time if no answer is awaited.
	asked int
	next  time.Time
}

// hear takes an advertisement of a router.
func (r *routers) hear(moment time.Time, from netip.Addr) {
	if !r.present.IsValid() || from == r.present {
		r.present, r.heard, r.next = from, moment, time.Time{}
		return
	}
	if !r.other.IsValid() || from == r.other || moment.Sub(r.otherHeard) > silence {
		r.other, r.otherHeard = from, moment
	}
	if !r.asking() && moment.Sub(r.heard) > silence {
		r.ask(moment)
	}
}

// ask begins to ask for the present router, or for any.
func (r *routers) ask(moment time.Time) { r.asked, r.next = 0, moment }

// asking reports whether an answer may still come.
func (r *routers) asking() bool { return !r.next.IsZero() }

// tick reports whether a solicitation is due, and replaces a router that answered none, unless established: BGP has a
// session with it.
func (r *routers) tick(moment time.Time, established bool) (solicit bool) {
	if moment.Sub(r.otherHeard) > remembered {
		r.other = netip.Addr{}
	}
	if !r.asking() || moment.Before(r.next) {
		return false
	}
	if r.asked < maxSolicitations {
		r.asked++
		r.next = moment.Add(solicitInterval)
		return true
	}
	if r.other.IsValid() && r.otherHeard.After(r.heard) && !established {
		r.present, r.heard, r.other = r.other, r.otherHeard, netip.Addr{}
	}
	r.next = time.Time{}
	return false
}
