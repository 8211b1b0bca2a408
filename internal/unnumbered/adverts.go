package unnumbered

import (
	"math/rand/v2"
	"time"
)

const (
	// Between advertisements is a random time of these, as of FRR on such links: at most 10 s, at least three quarters of it
	// (RFC 4861 section 6.2.1).
	leastInterval, mostInterval = 7500 * time.Millisecond, 10 * time.Second
	// The first ones follow each other sooner (RFC 4861 section 6.2.4).
	initialAdverts  = 3
	initialInterval = 3 * time.Second
	// MIN_DELAY_BETWEEN_RAS and MAX_RA_DELAY_TIME of RFC 4861 section 10.
	leastPause  = 3 * time.Second
	answerDelay = 500 * time.Millisecond
)

// adverts is when this node advertises itself on one link.
type adverts struct {
	next, last time.Time
	sent       int
}

// begin has an advertisement sent at once, or as soon as is allowed: the link works.
func (a *adverts) begin(now time.Time) { a.sent, a.next = 0, a.allowed(now) }

// allowed is the first time not before t at which another one may be sent: a flood of solicitations must not become one
// of advertisements (RFC 4861 section 6.2.6).
func (a *adverts) allowed(t time.Time) time.Time {
	if free := a.last.Add(leastPause); !a.last.IsZero() && t.Before(free) {
		return free
	}
	return t
}

// solicited has a question answered, together with those of others.
func (a *adverts) solicited(now time.Time) {
	if at := a.allowed(now.Add(rand.N(answerDelay))); at.Before(a.next) {
		a.next = at
	}
}

// tick reports whether an advertisement is due.
func (a *adverts) tick(now time.Time) (send bool) {
	if now.Before(a.next) {
		return false
	}
	a.sent++
	a.last, a.next = now, now.Add(leastInterval+rand.N(mostInterval-leastInterval))
	if a.sent < initialAdverts {
		a.next = now.Add(initialInterval)
	}
	return true
}
