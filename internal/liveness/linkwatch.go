package liveness

import (
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// linkMisses is how many rounds in a row have no answer until a link is silent: 0.8 s.
	linkMisses = 2
	// linkHoldTime is how long a link must work after each of its first two losses until this node uses it as before.
	// As for nodes, it doubles with each further loss that counts, up to maxLinkHoldTime.
	linkHoldTime    = 10 * time.Second
	maxLinkHoldTime = 5 * time.Minute
	// linkForgiveTime is how long a link works until its losses are forgotten.
	linkForgiveTime = 10 * time.Minute
	// linkNewTime is how long a link that comes up for the first time waits for an answer. A switch port with spanning
	// tree forwards 30 s after it has a carrier (IEEE 802.1D: twice the forward delay).
	linkNewTime = time.Minute
)

// watchedLink is what is known of one link. It is pure: times are arguments.
//
// A link that lost its carrier, or on which no machine answers, is silent. It stays so until machines have answered for
// a while: a switch port may have a carrier long before it forwards, and a port that flaps would move addresses each
// time.
type watchedLink struct {
	carrier carrier
	// up reports whether the link can announce now. upSince is when it came up; if this speaker found it up at its
	// start, when the node booted.
	up      bool
	upSince time.Time
	// usual is the machine that answered last; zero if none ever did. No other machine is asked as long as it answers.
	usual lb.Question
	// answered is the outcome of the last round. There were so many of the same outcome in a row since the time since.
	answered bool
	rounds   int
	since    time.Time
	// silent reports whether other nodes announce there; heardSince is when a machine answered first since the link
	// became silent.
	silent     bool
	heardSince time.Time
	// losses counts how often the link became silent lately, lostAt is when it did last.
	losses int
	lostAt time.Time
}

// carrier tells one time with a carrier from the next.
type carrier struct {
	index   int
	changes uint32
}

func carrierOf(l lb.Interface) carrier { return carrier{l.Index, l.CarrierChanges} }

// newWatchedLink returns what is known of a link that is up since a time.
func newWatchedLink(now, upSince time.Time, own lb.Interface) *watchedLink {
	w := &watchedLink{carrier: carrierOf(own), up: true, upSince: upSince}
	w.silent = w.isNew(now)
	return w
}

// observe takes over whether the link is up, and which carrier it has.
func (w *watchedLink) observe(now time.Time, own lb.Interface) {
	is, up := carrierOf(own), own.CanAnnounce()
	if is == w.carrier && up == w.up {
		return
	}
	if up {
		w.upSince = now
	}
	w.carrier, w.up = is, up
	w.answered, w.rounds = false, 0
	w.lose(now)
}

// outcome is what a round of questions on a link found.
type outcome struct {
	// usual is the machine that answered, zero for none.
	usual lb.Question
	// foreign reports whether foreign machines were asked too, if no usual one answered.
	foreign bool
	// alone reports whether no other living node has a link there that is not silent.
	alone bool
}

// record takes the outcome of a round. If this node is alone, there is none to leave addresses to: one answer is
// enough.
func (w *watchedLink) record(now time.Time, o outcome) {
	answered := o.usual != lb.Question{}
	if !answered && o.alone && !o.foreign && w.answered && !w.silent {
		return // all machines that were asked are nodes whose links failed first, which shows nothing about this one
	}
	if answered != w.answered {
		w.answered, w.rounds, w.since = answered, 0, now
	}
	w.rounds++
	if !answered {
		if w.rounds == linkMisses {
			w.lose(now)
		}
		if !w.heard() && !w.isNew(now) {
			w.silent = false
		}
		return
	}

	w.usual = o.usual
	if w.heardSince.IsZero() {
		w.heardSince = now
	}
	steady := now.Sub(w.since) >= linkHoldTime && now.Sub(w.heardSince) >= w.holdTime()
	if o.alone || steady {
		w.silent = false
	}
}

// lose makes the link silent. A link on which no machine ever answered does not become so: it may be empty. A loss
// while the link is silent does not count: it moves no address.
func (w *watchedLink) lose(now time.Time) {
	if !w.heard() {
		return
	}
	if !w.silent {
		if now.Sub(w.lostAt) >= linkForgiveTime {
			w.losses = 0
		}
		w.losses++
	}
	w.silent, w.lostAt, w.heardSince = true, now, time.Time{}
}

// reset forgets the machines of the link, since no other node is there that could take anything over.
func (w *watchedLink) reset() {
	w.usual, w.answered, w.rounds = lb.Question{}, false, 0
	w.silent, w.heardSince = false, time.Time{}
}

// heard reports whether a machine ever answered.
func (w *watchedLink) heard() bool { return w.usual != lb.Question{} }

// isNew reports whether the link came up a short while ago.
func (w *watchedLink) isNew(now time.Time) bool { return now.Sub(w.upSince) < linkNewTime }

// settles reports whether the link came up just now. Its IPv6 addresses are tentative for a second or two (RFC 4862
// section 5.4), so that it seems to have no neighbours.
func (w *watchedLink) settles(now time.Time) bool { return now.Sub(w.upSince) < linkHoldTime }

// isSilent reports whether the node ranks behind others on the link, also while it is down: a plan may still be made by
// an earlier reading of the links. alone is as in outcome. A new link without any answer yet leaves addresses to others
// only if there are any.
func (w *watchedLink) isSilent(now time.Time, alone func() bool) bool {
	if !w.silent {
		return false
	}
	return w.heard() || w.isNew(now) && !alone()
}

// holdTime is how long the link must work until it is no longer silent.
func (w *watchedLink) holdTime() time.Duration {
	return min(linkHoldTime<<(min(max(w.losses, 2), 16)-2), maxLinkHoldTime)
}
