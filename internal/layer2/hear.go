package layer2

import (
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// mostNews bounds what readers have told and the goroutine of Run has not heard
// yet. What is lost beyond it is said again by whoever said it.
const mostNews = 4096

// conflictAge is how long a conflict is shown after it was seen last, and how long
// the machine that is named in it has to be silent for another to be named.
const conflictAge = time.Minute

// news is what a frame of another station means for an address of ours.
type news struct {
	addr netip.Addr
	mac  link.MAC
	// link that it came from.
	link string
	// handover: a speaker that has announced the address asks who goes on. Else a
	// machine that is not ours says that it has it.
	handover bool
}

// claimed deals with a station that says to have an address of ours.
func (r *Responder) claimed(t *table, e *entry, l *attached, m message) outcome {
	if t.speakers[m.mac] {
		if e.become(handing, gone) {
			r.counts.handovers[heard].Add(1)
			r.Kick()
		}
		return bySpeaker
	}
	switch e.is() {
	case probing, conflicting, ours:
		r.tell(news{addr: m.claimed, mac: m.mac, link: l.Name})
	}
	return claimed
}

// asked decides whether a question for an address of ours is answered.
func (r *Responder) asked(t *table, e *entry, l *attached, m message) outcome {
	is, speaker := e.is(), t.speakers[m.mac]
	switch {
	case is == probing && m.isProbe() && !speaker:
		// Another machine wants the same address at the same time (RFC 5227 section
		// 2.1.1, RFC 4862 section 5.4.3).
		r.tell(news{addr: m.target, mac: m.mac, link: l.Name})
		return claimed
	case !is.answers():
		return notOurs
	case is == handing && m.isProbe() && speaker:
		return notOurs // it looks for who announces from now on, as we do
	case !r.lease.valid():
		return lapsed
	}
	if is == ours && m.isProbe() && speaker {
		r.tell(news{addr: m.target, link: l.Name, handover: true})
	}
	return answered
}

// tell never blocks a reader.
func (r *Responder) tell(n news) {
	select {
	case r.heard <- n:
	default:
	}
}

// hear acts on what a reader told.
func (k *keeper) hear(n news) {
	e := k.r.table.Load().entries[n.addr]
	if e == nil {
		return
	}
	now := k.r.now()
	if n.handover {
		// Who asks has answered until now: what neighbours learnt from it last is to be replaced.
		for index := range k.ports {
			k.schedule.restart(pair{index, n.addr}, now)
		}
		return
	}
	k.r.counts.conflicts[number(lb.FamilyOf(n.addr))].Add(1)
	switch e.is() {
	case probing:
		if e.become(probing, conflicting) {
			k.conflict(e, n, now)
			k.reschedule(n.addr, now)
		}
	case conflicting:
		k.conflict(e, n, now)
	case ours:
		if c := k.conflict(e, n, now); now.Sub(c.Defended) >= k.r.timers.DefendInterval {
			c.Defended = now
			e.conflict.Store(&c)
			k.defend(n.addr)
		}
	}
}

// conflict notes who claims an address, and says so when it is somebody new. Machines
// that take turns, or one that changes its MAC with each frame, are not new each time.
func (k *keeper) conflict(e *entry, n news, now time.Time) Conflict {
	c := Conflict{Since: now}
	before := e.conflict.Load()
	if before != nil {
		c = *before
	}
	fresh := before == nil || c.MAC != n.mac && now.Sub(c.Seen) >= conflictAge
	if fresh || c.MAC == n.mac {
		c.MAC, c.Link, c.Seen = n.mac, n.link, now
	}
	c.Last = now
	e.conflict.Store(&c)
	k.conflicts[n.addr] = e.status
	if fresh {
		k.r.log.Warn("another machine says that it has an address of ours", "address", n.addr, "mac", n.mac, "link", n.link, "is", e.is())
		k.r.changed()
	}
	return c
}

// defend says once more whose the address is (RFC 5227 section 2.4).
func (k *keeper) defend(addr netip.Addr) {
	for _, p := range k.ports {
		p.announce(addr)
	}
	k.r.counts.repairs[repairConflict].Add(1)
}

// forgetConflicts drops those that are over.
func (k *keeper) forgetConflicts(now time.Time) {
	for addr, s := range k.conflicts {
		c := s.conflict.Load()
		over := c != nil && s.is() == ours && now.Sub(c.Last) >= conflictAge
		e := k.r.table.Load().entries[addr]
		switch {
		case e == nil || e.status != s:
			delete(k.conflicts, addr)
		case over:
			s.conflict.Store(nil)
			delete(k.conflicts, addr)
			k.r.log.Info("no other machine says any more that it has the address", "address", addr, "mac", c.MAC)
			k.r.changed()
		}
	}
}
