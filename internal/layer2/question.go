package layer2

import (
	"context"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// questionTimes is how often a question is sent, questionInterval apart: one frame and
	// one answer may be lost.
	questionTimes    = 3
	questionInterval = 10 * time.Millisecond
)

// Ask sends each question three times within 20 ms, or as often as there is time for, and
// returns how many answers each got within the given time, at most as many, or lb.Unasked.
// It returns early if there is nothing left to wait for.
//
// Only time spent listening counts: while this process does not run, whether the CPU is
// busy or the process stopped, it hears nothing, which says nothing about the others. ctx
// bounds the whole by the clock.
//
// It needs no port and shares nothing with open ones: the next in rank may not announce
// anything yet, its announcements may change meanwhile, and answers must not queue behind
// the questions of all neighbours that lost the owner. Concurrent calls are safe.
func (r *Responder) Ask(ctx context.Context, questions []lb.Question, within time.Duration) []int {
	in := r.inquire(questions)
	defer in.close()
	in.times = max(1, min(questionTimes, int(within/questionInterval)))
	in.run(ctx, within)
	out := make([]int, len(questions))
	for i, q := range questions {
		out[i] = min(in.asked[plain(q)].outcome(), in.times)
	}

	return out
}

// plain normalizes a question, so that equivalent questions are equal.
func plain(q lb.Question) lb.Question {
	q.Address = q.Address.Unmap().WithZone("")
	return q
}

// inquiry is a set of concurrent questions with their answers.
type inquiry struct {
	r        *Responder
	speakers map[lb.MAC]bool
	asked    map[lb.Question]*asked
	taps     []*tap
	// times is how often each is sent.
	times int
}

// asked is a question in progress.
type asked struct {
	// tap to send it by, nil if there is none.
	tap   *tap
	frame []byte
	// sent: it was sent at least once.
	sent    bool
	answers int
}

func (a *asked) outcome() int {
	switch {
	case a.answers > 0:
		return a.answers
	case !a.sent || a.tap.failed:
		return lb.Unasked
	}

	return 0
}

// waits reports whether more answers may arrive.
func (in *inquiry) waits(a *asked) bool { return a.tap != nil && !a.tap.failed && a.answers < in.times }

// inquire opens the sockets for the questions, and sends nothing yet.
func (r *Responder) inquire(questions []lb.Question) *inquiry {
	in := &inquiry{r: r, speakers: r.table.Load().of.Speakers, asked: make(map[lb.Question]*asked, len(questions))}
	links := make(map[string]lb.Interface)
	for _, l := range r.config.Links() {
		links[l.Name] = l
	}

	for _, q := range questions {
		q = plain(q)
		if in.asked[q] != nil {
			continue
		}

		a := &asked{}
		in.asked[q] = a
		l, known := links[q.Link]
		if !known || !l.CanAnnounce() || !q.MAC.IsUnicast() || q.MAC == l.MAC || !q.Address.IsValid() {
			continue
		}

		proto := r.protocols[number(lb.FamilyOf(q.Address))]
		if q.Echo {
			proto = r.protocols[echo]
		}

		if a.frame = proto.question(&l, q.MAC, q.Address); a.frame != nil {
			a.tap = in.tapOn(l, proto)
		}
	}

	return in
}

// tapOn returns the tap of a link and protocol, which it opens at the first call.
func (in *inquiry) tapOn(l lb.Interface, proto protocol) *tap {
	for _, e := range in.taps {
		if e.link.Index == l.Index && e.proto.number == proto.number {
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
	for spent := time.Duration(0); spent < within && ctx.Err() == nil && in.open(); {
		next := min(within, time.Duration(times)*questionInterval)
		if times < in.times && spent >= next {
			in.put()
			times++
			continue
		}

		// Check ctx at least as often as questions are sent.
		wait := min(within-spent, questionInterval)
		if times < in.times {
			wait = min(wait, next-spent)
		}

		start := time.Now()
		await(in.taps, wait)
		in.receive()
		spent += min(time.Since(start), wait)
	}

	in.receive() // count answers that arrived in time, even if we are late to read them
}

func (in *inquiry) open() bool {
	for _, a := range in.asked {
		if in.waits(a) {
			return true
		}
	}
	return false
}

// put sends each open question once.
func (in *inquiry) put() {
	for _, a := range in.asked {
		if !in.waits(a) {
			continue
		}

		result := failed
		if a.tap.send(a.frame) {
			result, a.sent = sent, true
		}

		in.r.counts.probes[a.tap.proto.number][result].Add(1)
	}
}

// receive counts the answers that have arrived.
func (in *inquiry) receive() {
	for _, e := range in.taps {
		e.receive(func(frame []byte) { in.heard(e, frame) })
	}
}

// heard counts a frame if it answers a question: the asked machine tells us that it has
// the address. A claim by another machine does not count, nor one by a stand-in for a
// speaker. A foreign machine may send from another MAC than the one it claims: routers
// that share a virtual MAC do.
func (in *inquiry) heard(e *tap, frame []byte) {
	m, out := e.proto.parse(frame, e.link.MAC)
	if out != answered || !m.reply || !m.direct {
		return
	}

	if in.speakers[m.mac] && lb.MAC(frame[offSource:offEtherType]) != m.mac {
		return
	}

	a := in.asked[lb.Question{Link: e.link.Name, MAC: m.mac, Address: m.claimed, Echo: m.nonce != 0}]
	if a == nil || m.nonce != 0 && m.nonce != nonceOf(a.frame) {
		return
	}

	if a.answers++; m.nonce == 0 {
		in.r.answered(e, m)
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
