package layer2

import (
	"context"
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// Question asks one machine on one link whether it answers for one address.
type Question struct {
	// Link is the name of our link.
	Link string
	// MAC is that of the machine, which alone is asked.
	MAC link.MAC
	// Address it is asked for: one that it announces, or its own.
	Address netip.Addr
}

// Unasked is in place of the number of answers where a question could not be put: the
// link is not there or fails, it has no IPv6 address to ask from, or the machine is
// ourselves. It says nothing of who was to be asked.
const Unasked = -1

const (
	// questionTimes is how often a question is put, questionInterval apart: one frame may
	// be lost, and so may one answer.
	questionTimes    = 3
	questionInterval = 10 * time.Millisecond
)

// Ask puts each question three times within 20 ms, and returns how many answers each
// got within the time, at most three, or Unasked. It returns sooner when there is
// nothing left to wait for.
//
// The time is what was spent listening: while this process does not run, whether busy or
// stopped, it hears nobody, which is nobody else's silence. ctx bounds it by the clock.
//
// It needs no port, and shares nothing with those that are open: the next in rank may
// announce nothing yet, what it announces may change meanwhile, and answers must not
// queue behind the questions of everybody who lost the owner. It may be called by
// several at once.
func (r *Responder) Ask(ctx context.Context, questions []Question, within time.Duration) []int {
	in := r.inquire(questions)
	defer in.close()
	in.run(ctx, within)
	out := make([]int, len(questions))
	for i, q := range questions {
		out[i] = in.asked[q.plain()].outcome()
	}
	return out
}

// plain makes questions that mean the same the same.
func (q Question) plain() Question {
	q.Address = q.Address.Unmap().WithZone("")
	return q
}

// inquiry is what is asked at once, and what was heard.
type inquiry struct {
	r        *Responder
	speakers map[link.MAC]bool
	asked    map[Question]*asked
	ears     []*ear
}

// asked is a question under way.
type asked struct {
	// ear to put it by, nil where there is none.
	ear   *ear
	frame []byte
	// sent: it was put at least once.
	sent    bool
	answers int
}

func (a *asked) outcome() int {
	switch {
	case a.answers > 0:
		return min(a.answers, questionTimes)
	case !a.sent || a.ear.failed:
		return Unasked
	}
	return 0
}

// open reports whether more may be heard.
func (a *asked) open() bool { return a.ear != nil && !a.ear.failed && a.answers < questionTimes }

// inquire opens what it takes to ask, and sends nothing yet.
func (r *Responder) inquire(questions []Question) *inquiry {
	in := &inquiry{r: r, speakers: r.table.Load().speakers, asked: make(map[Question]*asked, len(questions))}
	links := make(map[string]link.Link)
	for _, l := range r.links() {
		links[l.Name] = l
	}
	for _, q := range questions {
		q = q.plain()
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
		frame, err := proto.question(&l, q.MAC, q.Address)
		if err != nil {
			r.log.Debug("cannot ask", "question", q, "err", err)
			continue
		}
		a.ear, a.frame = in.earOn(l, proto), frame
	}
	return in
}

// earOn returns the ear of a link and family, opened at the first call; nil if that fails.
func (in *inquiry) earOn(l link.Link, proto protocol) *ear {
	for _, e := range in.ears {
		if e.link.Index == l.Index && e.proto.family == proto.family {
			return e.unlessFailed()
		}
	}
	e, err := openEar(l, proto, proto.answers)
	if err != nil {
		in.r.log.Warn("cannot ask on link", "link", l.Name, "err", err)
	}
	in.ears = append(in.ears, e)
	return e.unlessFailed()
}

// run asks and listens until the time is spent, ctx ends, or nothing is left to wait for.
func (in *inquiry) run(ctx context.Context, within time.Duration) {
	times := 0
	for spent := time.Duration(0); spent < within && ctx.Err() == nil && in.open(); {
		next := min(within, time.Duration(times)*questionInterval)
		if times < questionTimes && spent >= next {
			in.put()
			times++
			continue
		}
		// ctx is looked at no less often than questions are put.
		wait := min(within-spent, questionInterval)
		if times < questionTimes {
			wait = min(wait, next-spent)
		}
		start := time.Now()
		await(in.ears, wait)
		in.hear()
		spent += min(time.Since(start), wait)
	}
	in.hear() // what has arrived is not lost because we are late to look
}

func (in *inquiry) open() bool {
	for _, a := range in.asked {
		if a.open() {
			return true
		}
	}
	return false
}

// put puts each question that is still open once.
func (in *inquiry) put() {
	for _, a := range in.asked {
		if !a.open() {
			continue
		}
		result := failed
		if a.ear.send(a.frame) {
			result, a.sent = sent, true
		}
		in.r.counts.probes[number(a.ear.proto.family)][result].Add(1)
	}
}

// hear counts what has arrived.
func (in *inquiry) hear() {
	for _, e := range in.ears {
		e.hear(func(frame []byte) { in.heard(e, frame) })
	}
}

// heard counts a frame if it answers a question: the machine that was asked says, to
// us, that it has the address. Where another one says so it is no answer, nor where a
// stand-in says it of a speaker. A machine that is no speaker may send from another MAC
// than it says to have: routers that share one do.
func (in *inquiry) heard(e *ear, frame []byte) {
	m, out := e.proto.parse(frame, e.link.MAC)
	if out != answered || !m.reply || !m.direct {
		return
	}
	if in.speakers[m.mac] && link.MAC(frame[offSource:offEtherType]) != m.mac {
		return
	}
	if a := in.asked[Question{Link: e.link.Name, MAC: m.mac, Address: m.claimed}]; a != nil {
		a.answers++
	}
}

// close does not wait: closing a packet socket takes the kernel some 10 ms (synchronize_net).
func (in *inquiry) close() {
	ears := in.ears
	go func() {
		for _, e := range ears {
			e.close()
		}
	}()
}
