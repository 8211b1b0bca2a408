package unnumbered

import (
	"math/rand/v2"
	"time"
)

const (
	// Between advertisements is a random time of these, as of FRR on such links: at most 10 s, at least three quarters of it
	// (RFC 4861 section 6.2.1).
	minInterval, maxInterval = 7500 * time.Millisecond, 10 * time.Second
	// The first ones follow each other sooner (RFC 4861 section 6.2.4).
	initialAdverts  = 3
	initialInterval = 3 * time.Second
	// MIN_DELAY_BETWEEN_RAS and MAX_RA_DELAY_TIME of RFC 4861 section 10.
	minPause    = 3 * time.Second
	answerDelay = 500 * time.Millisecond
)

// adverts is when this node advertises itself on one link.
type adverts struct {
	next, last time.Time
	sent       int
}

// begin has an advertisement sent at once, or as soon as is allowed: the link works.
func (a *adverts) begin(moment time.Time) { a.sent, a.next = 0, a.allowed(moment) }

// allowed is the first time not before t at which another one may be sent: a flood of solicitations must not become one
// of advertisements (RFC 4861 section 6.2.6).
func (a *adverts) allowed(t time.Time) time.Time {
	if free := a.last.Add(minPause); !a.last.IsZero() && t.Before(free) {
		return free
	}
	return t
}

// solicited has a question answered, together with the questions of others.
func (a *adverts) solicited(moment time.Time) {
	if at := a.allowed(moment.Add(rand.N(answerDelay))); at.Before(a.next) {
		a.next = at
	}
}

// tick reports whether an advertisement is due.
func (a *adverts) tick(moment time.Time) (send bool) {
	if moment.Before(a.next) {
		return false
	}
	a.sent++
	a.last, a.next = moment, moment.Add(minInterval+rand.N(maxInterval-minInterval))
	if a.sent < initialAdverts {
		a.next = moment.Add(initialInterval)
	}
	return true
}
