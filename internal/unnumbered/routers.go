package unnumbered

import (
	"net/netip"
	"time"
)

const (
	// silence is longer than the time between two advertisements of a router: FRR sends one every 10 s.
	silence = 12 * time.Second
	// otherLifetime is the time for which a second router is remembered: three of its advertisements.
	otherLifetime = 36 * time.Second
	// MAX_RTR_SOLICITATIONS and RTR_SOLICITATION_INTERVAL of RFC 4861 section 10.
	maxSolicitations = 3
	solicitInterval  = 4 * time.Second
)

// routers is the state of the routers on one link. The first router that advertises itself is the link's.
//
// It is replaced only if another router advertises itself and it answers no solicitation: two routers must not
// alternate. A flood may suppress its answers, so it is not replaced while BGP has a session with it. Such a session
// ends by itself when the router is gone.
type routers struct {
	// present is the link's router; the zero Addr before the first. present advertised itself last at presentAt.
	present   netip.Addr
	presentAt time.Time
	// other is a second router: a mistake, or an attack. While it advertises itself no further one is recorded, so a
	// flood of invented routers causes no flood of log lines and plans.
	other   netip.Addr
	otherAt time.Time
	// solicitations counts the solicitations of the present search. The next one, or the end of the search, is due at
	// next. next is the zero Time if there is no search.
	solicitations int
	next          time.Time
}

// receive records an advertisement of a router. If another router advertises itself while the link's is silent, it
// begins to search for the link's.
func (r *routers) receive(moment time.Time, from netip.Addr) {
	if !r.present.IsValid() || from == r.present {
		r.present = from
		r.presentAt = moment
		r.next = time.Time{}
		return
	}

	isOtherSilent := moment.Sub(r.otherAt) > silence
	if !r.other.IsValid() || from == r.other || isOtherSilent {
		r.other = from
		r.otherAt = moment
	}

	isPresentSilent := moment.Sub(r.presentAt) > silence
	if isPresentSilent && !r.isSoliciting() {
		r.solicit(moment)
	}
}

// solicit begins to search for the present router, or for any.
func (r *routers) solicit(moment time.Time) {
	r.solicitations = 0
	r.next = moment
}

// isSoliciting reports whether an answer may still come.
func (r *routers) isSoliciting() bool {
	return !r.next.IsZero()
}

// tick reports whether a solicitation is due. At the end of a search it replaces a router that answered none, unless
// BGP has an established session with it.
func (r *routers) tick(moment time.Time, isEstablished bool) (isDue bool) {
	if moment.Sub(r.otherAt) > otherLifetime {
		r.other = netip.Addr{}
	}

	if !r.isSoliciting() || moment.Before(r.next) {
		return false
	}

	if r.solicitations < maxSolicitations {
		r.solicitations++
		r.next = moment.Add(solicitInterval)
		return true
	}

	isOtherNewer := r.other.IsValid() && r.otherAt.After(r.presentAt)
	if isOtherNewer && !isEstablished {
		r.present = r.other
		r.presentAt = r.otherAt
		r.other = netip.Addr{}
	}

	r.next = time.Time{}
	return false
}
