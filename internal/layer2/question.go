package layer2

import (
	"context"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// questionTimes is the number of times that a question is sent, questionInterval apart: one frame and one answer
	// may be lost.
	questionTimes    = 3
	questionInterval = 10 * time.Millisecond
)

// Ask sends each question three times within 20 ms, or as often as there is time for, and
// returns how many answers each got within the given time, at most as many, or lb.Unasked.
// It returns early if there is nothing left to wait for.
//
// Only time spent listening counts: while this process does not run, whether the CPU is
// busy or the process stopped, it receives nothing, which tells nothing about other machines. ctx
// bounds the whole by the clock.
//
// It needs no port and shares nothing with open ports: the next in rank may not announce
// anything yet, its announcements may change meanwhile, and answers must not queue behind
// the questions of all neighbours that lost the owner. Concurrent calls are safe.
func (r *Responder) Ask(ctx context.Context, questions []lb.Question, within time.Duration) []int {
	in := r.newInquiry(questions)
	defer in.close()
	in.times = max(1, min(questionTimes, int(within/questionInterval)))
	in.run(ctx, within)

	answers := make([]int, len(questions))
	for i, q := range questions {
		answers[i] = min(in.questions[normalized(q)].result(), in.times)
	}

	return answers
}

// normalized returns a question in the form that is equal for equivalent questions.
func normalized(q lb.Question) lb.Question {
	q.Address = q.Address.Unmap().WithZone("")
	return q
}

// inquiry is a set of concurrent questions with their answers.
type inquiry struct {
	r         *Responder
	speakers  map[lb.MAC]bool
	questions map[lb.Question]*openQuestion
	taps      []*tap
	// times is the number of times that each question is sent.
	times int
}

// openQuestion is a question in progress.
type openQuestion struct {
	// tap sends it, nil if it cannot be sent.
	tap   *tap
	frame []byte
	// wasSent reports whether it was sent at least once.
	wasSent bool
	answers int
}

// result returns the number of answers, or lb.Unasked.
func (q *openQuestion) result() int {
	if q.answers > 0 {
		return q.answers
	}

	if !q.wasSent || q.tap.hasFailed {
		return lb.Unasked
	}

	return 0
}

// awaits reports whether more answers to a question may arrive.
func (in *inquiry) awaits(q *openQuestion) bool {
	return q.tap != nil && !q.tap.hasFailed && q.answers < in.times
}

// newInquiry opens the sockets for the questions, and sends nothing yet.
func (r *Responder) newInquiry(questions []lb.Question) *inquiry {
	in := &inquiry{
		r:         r,
		speakers:  r.table.Load().desired.Speakers,
		questions: make(map[lb.Question]*openQuestion, len(questions)),
	}

	links := make(map[string]lb.Interface)
	for _, l := range r.config.Links() {
		links[l.Name] = l
	}

	for _, q := range questions {
		q = normalized(q)
		if in.questions[q] != nil {
			continue
		}

		open := &openQuestion{}
		in.questions[q] = open
		l, isKnown := links[q.Link]
		if !isKnown || !canAsk(q, l) {
			continue
		}

		proto := r.protocols[familyIndex(lb.FamilyOf(q.Address))]
		if q.Echo {
			proto = r.protocols[echoIndex]
		}

		if q.Contest {
			open.frame = r.contestQuestion(&l, q)
		} else {
			open.frame = proto.question(&l, q.MAC, q.Address)
		}

		if open.frame != nil {
			open.tap = in.tapOn(l, proto)
		}
	}

	return in
}

// canAsk reports whether a question can be sent on a link.
func canAsk(q lb.Question, l lb.Interface) bool {
	isToMachine := q.MAC.IsUnicast() && q.MAC != l.MAC
	return isToMachine && q.Address.IsValid() && l.CanAnnounce()
}

// tapOn returns the tap of a link and protocol, which it opens at the first call.
func (in *inquiry) tapOn(l lb.Interface, proto protocol) *tap {
	for _, e := range in.taps {
		if e.link.Index == l.Index && e.proto.index == proto.index {
			return e
		}
	}

	e, err := openTap(l, proto, proto.answers)
	if err != nil {
		in.r.config.Log.Warn("cannot ask on link", "link", l.Name, "error", err)
	}

	in.taps = append(in.taps, e)
	return e
}

// run asks and listens until the time has passed, ctx ends, or nothing is left to wait for.
func (in *inquiry) run(ctx context.Context, within time.Duration) {
	times := 0
	spent := time.Duration(0)
	for spent < within && ctx.Err() == nil && in.hasOpen() {
		next := min(within, time.Duration(times)*questionInterval)
		if times < in.times && spent >= next {
			in.sendOpen()
			times++
			continue
		}

		// Check ctx at least as often as questions are sent.
		wait := min(within-spent, questionInterval)
		if times < in.times {
			wait = min(wait, next-spent)
		}

		start := time.Now()
		waitForFrame(in.taps, wait)
		in.receive()
		spent += min(time.Since(start), wait)
	}

	in.receive() // count answers that arrived in time, even if we are late to read them
}

// hasOpen reports whether a question awaits more answers.
func (in *inquiry) hasOpen() bool {
	for _, q := range in.questions {
		if in.awaits(q) {
			return true
		}
	}

	return false
}

// sendOpen sends each open question once.
func (in *inquiry) sendOpen() {
	for _, q := range in.questions {
		if !in.awaits(q) {
			continue
		}

		result := failed
		if q.tap.send(q.frame) {
			result = sent
			q.wasSent = true
		}

		in.r.counters.probes[q.tap.proto.index][result].Add(1)
	}
}

// receive counts the answers that have arrived.
func (in *inquiry) receive() {
	for _, e := range in.taps {
		e.receive(func(frame []byte) { in.countAnswer(e, frame) })
	}
}

// countAnswer counts a frame if it answers a question: the asked machine reports that it has
// the address. A claim by another machine does not count, nor a claim by a stand-in for a
// speaker. A foreign machine may send from another MAC than the one it claims: routers
// that share a virtual MAC do.
func (in *inquiry) countAnswer(e *tap, frame []byte) {
	m, result := e.proto.parse(frame, e.link.MAC)
	if result != answered || !m.isReply || !m.isUnicast {
		return
	}

	source := lb.MAC(frame[offSource:offEtherType])
	if in.speakers[m.mac] && source != m.mac {
		return
	}

	isEcho := m.nonce != 0
	q := in.questions[lb.Question{
		Link:    e.link.Name,
		MAC:     m.mac,
		Address: m.claimed,
		Echo:    isEcho,
		Contest: m.isContest,
	}]
	if q == nil || isEcho && m.nonce != nonceOf(q.frame) {
		return
	}

	q.answers++
	if !isEcho {
		in.r.recordAnswer(e, m)
	}
}

// close does not wait: closing a packet socket takes the kernel some 10 ms (synchronize_net).
func (in *inquiry) close() {
	taps := in.taps
	go func() {
		for _, e := range taps {
			e.close()
		}
	}()
}
