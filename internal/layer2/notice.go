package layer2

import (
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// maxNotices bounds the queue from readers to the goroutine of Run. Dropped notices do
// no harm: machines repeat their claims.
const maxNotices = 4096

// conflictAge is the time for which a conflict is shown after the last claim. After such a silence of its machine, it
// names another machine.
const conflictAge = time.Minute

// lateAnswerTime is the time after a successful probe in which an answer shows that another machine had the address
// before.
const lateAnswerTime = time.Second

// moveTime exceeds the duration of a planned move: nodes plan it within a second of each other, and a former owner
// that still answers announces nothing.
const moveTime = 5 * time.Second

// duplicateCheckInterval is the time between two checks of an address in conflict, so short that some answers may be
// lost before the conflict counts as over.
const duplicateCheckInterval = conflictAge / 4

// notice reports what another machine's frame means for an address of this node.
type notice struct {
	addr netip.Addr
	mac  lb.MAC
	// link is the name of the link at which the frame arrived.
	link string
	// isHandover reports that a speaker which answered for the address leaves it to this node. Otherwise a machine
	// claims the address.
	isHandover bool
	// isSpeaker reports that the machine is a speaker, or pretends to be one. A claim of a speaker to all machines may
	// belong to a move.
	isSpeaker bool
	// isAnswer reports that the claim answers a question of this node, which proves it, a speaker's too.
	isAnswer bool
}

// handleClaim handles a machine's claim of an address of this node.
func (r *Responder) handleClaim(t *addressTable, e *tableEntry, l *portLink, m message) frameResult {
	if r.hasMAC(m.mac) {
		return ownFrame // whichever machine sent it
	}

	isSpeaker := t.desired.Speakers[m.mac]
	if isSpeaker {
		r.endHandover(e)
	}

	p := e.phaseOn(l.Name)
	isForeignProbe := !isSpeaker && (p == probing || p == conflicting)
	if p == owned || isForeignProbe {
		r.notify(notice{
			addr:      m.claimed,
			mac:       m.mac,
			link:      l.Name,
			isSpeaker: isSpeaker,
			isAnswer:  m.isReply && m.isUnicast,
		})
	}

	if isSpeaker {
		return bySpeaker
	}

	return claimed
}

// hasMAC reports whether one of the links in use has the MAC.
func (r *Responder) hasMAC(mac lb.MAC) bool {
	for _, p := range *r.published.ports.Load() {
		if p.link.Load().MAC == mac {
			return true
		}
	}

	return false
}

// checkQuestion returns answered if a question for an address of this node is to be answered, else why not.
func (r *Responder) checkQuestion(t *addressTable, e *tableEntry, l *portLink, m message) frameResult {
	p := e.phaseOn(l.Name)
	isSpeaker := t.desired.Speakers[m.mac]
	switch {
	case p == probing && m.isProbe() && !isSpeaker:
		// Another machine wants the same address at the same time (RFC 5227 section
		// 2.1.1, RFC 4862 section 5.4.3).
		r.notify(notice{
			addr: m.target,
			mac:  m.mac,
			link: l.Name,
		})
		return claimed
	case !p.answers():
		return notOurs
	case p == handingOver && m.isProbe() && isSpeaker:
		return notOurs // an older speaker looks for the new owner
	case e.mac != (lb.MAC{}) && m.nonce != 0:
		return notOurs // it asks whether the owner itself is alive
	case !r.lapses.isValid():
		return lapsed
	}

	return answered
}

// notify passes a notice to the goroutine of Run, or drops it if the queue is full. It never blocks a reader.
func (r *Responder) notify(n notice) {
	select {
	case r.notices <- n:
	default:
	}
}

// handleNotice acts on a reader's notice.
func (k *portKeeper) handleNotice(n notice) {
	t := k.r.table.Load()
	e := t.entries.Of(n.addr)
	if e == nil {
		return
	}

	at := k.r.system.clock()
	if n.isHandover {
		// Neighbours must replace what they learned from that speaker.
		for _, p := range k.ports {
			p.schedule.repeatAgain(n.addr, at)
		}

		return
	}

	if n.isSpeaker {
		k.r.recordClaim(n, at)
	}

	if n.isSpeaker && !k.outlastsMove(e, n, at) {
		for _, p := range k.portsOf(n.link) {
			p.schedule.checkDuplicate(n.addr, at.Add(moveTime))
		}

		return
	}

	k.r.counters.conflicts[familyIndex(lb.FamilyOf(n.addr))].Add(1)
	switch e.phaseOn(n.link) {
	case probing, conflicting:
		k.loseOnLink(e, n, at)
	case owned:
		for _, p := range k.portsOf(n.link) {
			k.handleRivalClaim(p, e, n, at)
		}
	}
}

// outlastsMove reports whether a speaker answers for an address for longer than a move takes: it answers a duplicate
// check, as one did moveTime ago. A single answer may come from the middle of a move.
func (k *portKeeper) outlastsMove(e *tableEntry, n notice, at time.Time) bool {
	_, isKnown := e.conflict(n.link)
	hasRepeated := func(p *linkPort) bool { return p.schedule.hasRepeatedAnswer(n.addr, at) }
	return n.isAnswer && (isKnown || slices.ContainsFunc(k.portsOf(n.link), hasRepeated))
}

// loseOnLink leaves an address to the machine of a notice, on its link.
func (k *portKeeper) loseOnLink(e *tableEntry, n notice, at time.Time) {
	k.recordConflict(e, n, conflicting, at)
	k.reschedule(k.r.table.Load(), n.addr, at)
}

// handleRivalClaim handles a claim of an owned address. A machine that answers shortly after the probes had the address
// first, and keeps it. A claim to all machines is no answer, or one packet would take an address. But an answer to
// duplicate address detection looks the same (RFC 4861 section 7.2.4), so an early claim is checked at once.
func (k *portKeeper) handleRivalClaim(p *linkPort, e *tableEntry, n notice, at time.Time) {
	checkAt := at.Add(duplicateCheckInterval)
	if p.schedule.isRecentlyProbed(n.addr, at) {
		if n.isAnswer && !n.isSpeaker {
			k.loseOnLink(e, n, at)
			return
		}

		checkAt = at
	}

	k.recordConflict(e, n, owned, at)
	p.schedule.defend(n.addr, at)
	p.schedule.checkDuplicate(n.addr, checkAt)
}

// portsOf returns the port of a link, if there is one.
func (k *portKeeper) portsOf(linkName string) (out []*linkPort) {
	for _, p := range k.ports {
		if p.link.Load().Name == linkName {
			out = append(out, p)
		}
	}

	return out
}

// recordConflict records which machine claims an address on a link, and logs a new one. Machines that
// take turns, or one machine that changes its MAC with each frame, do not count as new each time.
func (k *portKeeper) recordConflict(e *tableEntry, n notice, p phase, at time.Time) {
	c, isKnown := e.conflict(n.link)
	if !isKnown {
		c.Since = at
	}

	isNew := !isKnown || c.MAC != n.mac && at.Sub(c.Seen) >= conflictAge
	if isNew || c.MAC == n.mac {
		c.MAC = n.mac
		c.Link = n.link
		c.Seen = at
	}

	c.Last = at
	c.phase = p
	e.setConflict(n.link, c)
	k.r.state.version.Add(1)
	k.conflicts[n.addr] = e.status
	if isNew {
		k.r.config.Log.Warn(
			"another machine claims an address of this node",
			"address", n.addr,
			"mac", n.mac,
			"link", n.link,
			"phase", p,
		)
		k.r.markChanged()
	}
}

// expireConflicts removes conflicts of owned addresses that are over. Other conflicts end with a probe.
func (k *portKeeper) expireConflicts(at time.Time) {
	for addr, s := range k.conflicts {
		e := k.r.table.Load().entries.Of(addr)
		if e == nil || e.status != s {
			delete(k.conflicts, addr)
			continue
		}

		for _, c := range *s.conflicts.Load() {
			if c.phase != owned || at.Sub(c.Last) < conflictAge {
				continue
			}

			s.setConflict(c.Link)
			k.r.config.Log.Info(
				"no other machine claims the address any more",
				"address", addr,
				"mac", c.MAC,
				"link", c.Link,
			)
			k.r.markChanged()
		}
	}
}
