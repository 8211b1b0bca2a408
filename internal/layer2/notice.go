package layer2

import (
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// maxNotices bounds the queue from readers to the goroutine of Run. Dropped notices do
// no harm: machines repeat their claims.
const maxNotices = 4096

// conflictAge is how long a conflict is shown after it was last seen, and how long
// the machine it names must be silent before it names another.
const conflictAge = time.Minute

// lateTime is for how long after a probed address became ours an answer shows that it was another machine's before.
const lateTime = time.Second

// settleTime exceeds the duration of a planned move: nodes plan it within a second of each other, and a former owner
// that still answers announces nothing.
const settleTime = 5 * time.Second

// doubtInterval is how often a machine that answers for an address of ours too is asked again, so that some answers may
// be lost before the conflict counts as over.
const doubtInterval = conflictAge / 4

// notice reports what another machine's frame means for one of our addresses.
type notice struct {
	addr netip.Addr
	mac  lb.MAC
	// link on which the frame arrived.
	link string
	// handover: a speaker that answered for the address leaves it to this node. Otherwise a machine claims the address.
	// speaker: it is one, or pretends to be. answer: it answers a question of ours, which is proof in both cases; what
	// a speaker tells all may belong to a move.
	handover, speaker, answer bool
}

// claimed handles a machine that claims one of our addresses.
func (r *Responder) claimed(t *table, e *entry, l *attached, m message) outcome {
	speaker := t.of.Speakers[m.mac]
	switch {
	case r.own(m.mac):
		return ownFrame // whoever sent it
	case speaker:
		r.heard(e)
	}

	switch p := e.on(l.Name); {
	case p == ours, (p == probing || p == conflicting) && !speaker:
		r.notify(notice{addr: m.claimed, mac: m.mac, link: l.Name, speaker: speaker, answer: m.reply && m.direct})
	}

	if speaker {
		return bySpeaker
	}

	return claimed
}

// own reports whether one of the links in use has the MAC.
func (r *Responder) own(mac lb.MAC) bool {
	for _, p := range *r.ports.Load() {
		if p.link.Load().MAC == mac {
			return true
		}
	}
	return false
}

// asked decides whether to answer a question for one of our addresses.
func (r *Responder) asked(t *table, e *entry, l *attached, m message) outcome {
	p, speaker := e.on(l.Name), t.of.Speakers[m.mac]
	switch {
	case p == probing && m.isProbe() && !speaker:
		// Another machine wants the same address at the same time (RFC 5227 section
		// 2.1.1, RFC 4862 section 5.4.3).
		r.notify(notice{addr: m.target, mac: m.mac, link: l.Name})
		return claimed
	case !p.answers():
		return notOurs
	case p == handing && m.isProbe() && speaker:
		return notOurs // an older speaker looks for the new owner
	case e.mac != (lb.MAC{}) && m.nonce != 0:
		return notOurs // it asks whether the owner itself lives
	case !r.lease.valid():
		return lapsed
	}

	return answered
}

// notify never blocks a reader.
func (r *Responder) notify(n notice) {
	select {
	case r.notices <- n:
	default:
	}
}

// handle acts on a reader's notice.
func (k *keeper) handle(n notice) {
	e := k.r.table.Load().entries.Of(n.addr)
	if e == nil {
		return
	}

	now := k.r.now()
	if n.handover {
		// Neighbours must replace what they learned from that speaker.
		for _, p := range k.ports {
			p.schedule.restart(n.addr, now)
		}

		return
	}

	if n.speaker && !n.answer {
		for _, p := range k.on(n.link) {
			p.schedule.doubt(n.addr, now.Add(settleTime))
		}

		return
	}

	k.r.counts.conflicts[number(lb.FamilyOf(n.addr))].Add(1)
	switch e.on(n.link) {
	case probing, conflicting:
		k.conflict(e, n, conflicting, now)
		k.reschedule(k.r.table.Load(), n.addr, now)
	case ours:
		for _, p := range k.on(n.link) {
			k.contested(p, e, n, now)
		}
	}
}

// contested handles a claim of an announced address. Whoever answers shortly after the probes had it first, and keeps
// it. A claim to all is no answer, or one packet would take an address; but an answer to duplicate address detection
// looks the same (RFC 4861 section 7.2.4), so who claims that early is asked at once.
func (k *keeper) contested(p *port, e *entry, n notice, now time.Time) {
	ask := now.Add(doubtInterval)
	if p.schedule.early(n.addr, now) {
		if n.answer && !n.speaker {
			k.conflict(e, n, conflicting, now)
			k.reschedule(k.r.table.Load(), n.addr, now)
			return
		}

		ask = now
	}

	k.conflict(e, n, ours, now)
	p.schedule.defend(n.addr, now)
	p.schedule.doubt(n.addr, ask)
}

// on returns the port of a link, if there is one.
func (k *keeper) on(linkName string) (out []*port) {
	for _, p := range k.ports {
		if p.link.Load().Name == linkName {
			out = append(out, p)
		}
	}
	return out
}

// conflict records which machine claims an address on a link, and logs a new one. Machines that
// take turns, or one that changes its MAC with each frame, do not count as new each time.
func (k *keeper) conflict(e *entry, n notice, p phase, now time.Time) {
	c, known := e.conflict(n.link)
	if !known {
		c.Since = now
	}

	fresh := !known || c.MAC != n.mac && now.Sub(c.Seen) >= conflictAge
	if fresh || c.MAC == n.mac {
		c.MAC, c.Link, c.Seen = n.mac, n.link, now
	}

	c.Last, c.phase = now, p
	e.setConflict(n.link, c)
	k.r.version.Add(1)
	k.conflicts[n.addr] = e.status
	if fresh {
		k.r.config.Log.Warn(
			"another machine claims an address of this node",
			"address",
			n.addr,
			"mac",
			n.mac,
			"link",
			n.link,
			"phase",
			p,
		)

		k.r.changed()
	}
}

// forgetConflicts drops conflicts of announced addresses that are over. Others end with a probe.
func (k *keeper) forgetConflicts(now time.Time) {
	for addr, s := range k.conflicts {
		if e := k.r.table.Load().entries.Of(addr); e == nil || e.status != s {
			delete(k.conflicts, addr)
			continue
		}

		for _, c := range *s.conflicts.Load() {
			if c.phase == ours && now.Sub(c.Last) >= conflictAge {
				s.setConflict(c.Link)
				k.r.config.Log.Info(
					"no other machine claims the address any more",
					"address",
					addr,
					"mac",
					c.MAC,
					"link",
					c.Link,
				)

				k.r.changed()
			}
		}
	}
}
