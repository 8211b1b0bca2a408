package liveness

import (
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// minLinkMisses is how many rounds in a row have no answer until a link is silent: 0.8 s, and less if frames fail.
	// minMissTime is how far apart they are at least, however often the link is asked: a short blip moves nothing.
	minLinkMisses = 2
	minMissTime   = failingInterval
	// linkHoldTime is how long a link must work after each of its first two losses until this node uses it as before.
	// As for nodes, it doubles with each further loss that counts, up to maxLinkHoldTime.
	linkHoldTime    = 10 * time.Second
	maxLinkHoldTime = 5 * time.Minute
	// linkForgiveTime is how long a link works until its losses are forgotten.
	linkForgiveTime = 10 * time.Minute
	// machineInterval is the time between questions to machines while frames are heard, silentMachineInterval the same
	// where no machine ever answered.
	machineInterval       = 4 * time.Second
	silentMachineInterval = time.Minute
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
	// isUp reports whether the link can announce. upSince is when it came up, or when the node booted, if the link was
	// up at the start of this speaker.
	isUp    bool
	upSince time.Time
	// usualMachine is the machine that answered last, zero if none ever did. No other machine is asked as long as it
	// answers. It has no MAC if frames came instead.
	usualMachine lb.Question
	// answeringMachine is the last machine that answered a question, zero if none ever did. machinesAt is when machines
	// last answered, or were asked if none ever did.
	answeringMachine lb.Question
	machinesAt       time.Time
	// hasAnswered is the result of the last round, and streak how many rounds in a row had that result since
	// streakSince.
	hasAnswered bool
	streak      int
	streakSince time.Time
	// missedAt is when the last round without an answer counted. isFailing reports whether frames failed in it too.
	missedAt  time.Time
	isFailing bool
	// isSilent reports whether other nodes announce there. answeringSince is when a machine answered first since the
	// link became silent.
	isSilent       bool
	answeringSince time.Time
	// losses counts how often the link became silent within linkForgiveTime, and lostAt is when it last did.
	losses int
	lostAt time.Time
	// lacksFrames reports whether machines answered in the last round although frames failed.
	lacksFrames bool
	// blockedSince is since when that is so, and dividedSince since when other nodes there hear each other and not this
	// one; zero for not.
	blockedSince, dividedSince time.Time
}

// carrier tells one time with a carrier from the next.
type carrier struct {
	index   int
	changes uint32
}

func carrierOf(l lb.Interface) carrier { return carrier{l.Index, l.CarrierChanges} }

// newWatchedLink returns what is known of a link that is up since a time.
func newWatchedLink(at, upSince time.Time, own lb.Interface) *watchedLink {
	w := &watchedLink{carrier: carrierOf(own), isUp: true, upSince: upSince}
	w.isSilent = w.isNew(at)
	return w
}

// observe records whether the link is up, and which carrier it has.
func (w *watchedLink) observe(at time.Time, own lb.Interface) {
	present := carrierOf(own)
	isUp := own.CanAnnounce()
	if present == w.carrier && isUp == w.isUp {
		return
	}

	if isUp {
		w.upSince = at
	}

	w.carrier = present
	w.isUp = isUp
	w.hasAnswered = false
	w.lacksFrames = false
	w.isFailing = false
	w.streak = 0
	w.lose(at)
}

// roundResult is the result of a round of questions on a link.
type roundResult struct {
	// machine is the machine that answered, zero for none.
	machine lb.Question
	// askedForeign reports whether foreign machines were asked too, if no usual one answered.
	askedForeign bool
	// isAlone reports whether no other living node has a link there that is not silent.
	isAlone bool
	// isPair reports whether it has one other node, and both send frames.
	isPair bool
	// isSure reports whether frames show the same as no answer.
	isSure bool
	// wasAsked reports whether machines were asked, though frames are heard.
	wasAsked bool
}

// record records the result of a round. If this node is alone, there is no node to leave addresses to: one answer is
// enough.
func (w *watchedLink) record(at time.Time, r roundResult) {
	hasAnswered := r.machine != lb.Question{}
	w.recordMachine(at, r)
	w.lacksFrames = hasAnswered && r.isSure
	w.isFailing = false
	wasWorking := w.hasAnswered && !w.isSilent
	if !hasAnswered && (r.isAlone || r.isPair) && !r.askedForeign && wasWorking {
		// All machines that were asked are nodes whose links failed first, or a single node that may be faulty as well
		// as this one. Their silence shows nothing about this node.
		return
	}

	if hasAnswered != w.hasAnswered {
		w.hasAnswered = hasAnswered
		w.streak = 0
		w.streakSince = at
	}

	if !hasAnswered {
		w.recordMiss(at, r)
		return
	}

	w.streak++
	w.usualMachine = r.machine
	if w.answeringSince.IsZero() {
		w.answeringSince = at
	}

	isSteady := at.Sub(w.streakSince) >= linkHoldTime && at.Sub(w.answeringSince) >= w.holdTime()
	if r.isAlone || isSteady {
		w.isSilent = false
	}
}

// recordMachine records whether a machine answered a question, beside frames.
func (w *watchedLink) recordMachine(at time.Time, r roundResult) {
	switch {
	case r.machine.MAC != lb.MAC{}:
		w.answeringMachine = r.machine
		w.machinesAt = at
	case r.wasAsked && !w.answersQuestions():
		w.machinesAt = at
	}
}

// answersQuestions reports whether a machine ever answered a question.
func (w *watchedLink) answersQuestions() bool { return w.answeringMachine != lb.Question{} }

// isMachineDue reports whether to ask machines although frames are heard: clients use ARP and Neighbor Discovery, which
// alone may be filtered. After a round without an answer the next one is due at once.
func (w *watchedLink) isMachineDue(at time.Time) bool {
	interval := silentMachineInterval
	if w.answersQuestions() {
		interval = machineInterval
	}

	return at.Sub(w.machinesAt) >= interval
}

// recordMiss records a round without an answer.
func (w *watchedLink) recordMiss(at time.Time, r roundResult) {
	w.isFailing = r.isSure
	if w.streak > 0 && at.Sub(w.missedAt) < minMissTime {
		return
	}

	w.streak++
	w.missedAt = at
	if w.streak == minLinkMisses {
		w.lose(at)
	}

	if !w.everAnswered() && !w.isNew(at) {
		w.isSilent = false
	}
}

// lose makes the link silent, unless no machine ever answered there: it may be empty. A loss while the link is silent
// does not count: it moves no address.
func (w *watchedLink) lose(at time.Time) {
	if !w.everAnswered() {
		return
	}

	if !w.isSilent {
		if at.Sub(w.lostAt) >= linkForgiveTime {
			w.losses = 0
		}
		w.losses++
	}

	w.isSilent = true
	w.lostAt = at
	w.answeringSince = time.Time{}
}

// reset forgets the machines of the link, since no other node is there that could take an address over.
func (w *watchedLink) reset() {
	w.usualMachine = lb.Question{}
	w.answeringMachine = lb.Question{}
	w.hasAnswered = false
	w.lacksFrames = false
	w.isFailing = false
	w.streak = 0
	w.isSilent = false
	w.answeringSince = time.Time{}
}

// everAnswered reports whether a machine ever answered.
func (w *watchedLink) everAnswered() bool { return w.usualMachine != lb.Question{} }

// isByFrames reports whether a frame was heard after the last answer of a machine.
func (w *watchedLink) isByFrames() bool { return w.everAnswered() && w.usualMachine.MAC == lb.MAC{} }

// isNew reports whether the link came up less than linkNewTime ago.
func (w *watchedLink) isNew(at time.Time) bool { return at.Sub(w.upSince) < linkNewTime }

// isLeaving reports whether the next round may have the link left to other nodes, as frames show.
func (w *watchedLink) isLeaving() bool {
	return w.isUp && w.isFailing && !w.isSilent && w.everAnswered()
}

// isSettling reports whether the link came up a moment ago. Its IPv6 addresses are tentative for a second or two (RFC
// 4862 section 5.4), so that it seems to have no neighbours.
func (w *watchedLink) isSettling(at time.Time) bool { return at.Sub(w.upSince) < linkHoldTime }

// ranksBehind reports whether this node ranks behind other nodes on the link. That holds even while it is down: a plan
// may still be made by an earlier reading of the links. isAlone is as in roundResult. A new link without any answer yet
// leaves addresses to other nodes only if there are any.
func (w *watchedLink) ranksBehind(at time.Time, isAlone func() bool) bool {
	if !w.isSilent {
		return false
	}
	return w.everAnswered() || w.isNew(at) && !isAlone()
}

// isBlocked reports whether frames have been lost there for linkHoldTime although machines answer.
func (w *watchedLink) isBlocked(at time.Time) bool { return lasts(&w.blockedSince, at, w.lacksFrames) }

// isDivided reports whether the link has been divided for linkHoldTime.
func (w *watchedLink) isDivided(at time.Time, divided bool) bool {
	return lasts(&w.dividedSince, at, divided)
}

// lasts reports whether something has been the case for linkHoldTime. It keeps since when.
func lasts(since *time.Time, at time.Time, present bool) bool {
	if !present {
		*since = time.Time{}
		return false
	}
	if since.IsZero() {
		*since = at
	}

	return at.Sub(*since) >= linkHoldTime
}

// holdTime returns how long the link must work until it is no longer silent.
func (w *watchedLink) holdTime() time.Duration {
	doublings := min(max(w.losses, 2), 16) - 2
	return min(linkHoldTime<<doublings, maxLinkHoldTime)
}
