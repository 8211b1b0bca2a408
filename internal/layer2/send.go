package layer2

import (
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// lapseInterval is the time between two checks of a lapsed lease.
const lapseInterval = 5 * time.Millisecond

// sendDue does the due tasks, a few on each link at a time, and returns how long to pause.
func (k *portKeeper) sendDue() time.Duration {
	at := k.r.system.clock()
	if !k.r.lapses.isValid() && len(k.ports) > 0 {
		return lapseInterval
	}

	hasNewOwned := false
	for _, p := range k.ports {
		if k.sendDueOn(p, at) {
			hasNewOwned = true
		}
	}

	if hasNewOwned {
		k.r.markChanged()
	}

	wait := never
	for _, p := range k.ports {
		next := max(p.schedule.untilNext(at), p.resumeAt.Sub(at))
		wait = min(wait, next)
	}

	return max(wait, 0)
}

// sendDueOn does the due tasks of a link, and reports whether an address became owned. A task that the link does not
// take keeps its place; no other link waits for it. A late wake-up makes up for what it missed, up to paceSlack: on a
// busy node each may be some milliseconds late, and a burst has many.
func (k *portKeeper) sendDueOn(p *linkPort, at time.Time) (hasNewOwned bool) {
	if at.Sub(p.resumeAt) > paceSlack {
		p.resumeAt = at
	}

	for ; !at.Before(p.resumeAt); p.resumeAt = p.resumeAt.Add(paceInterval) {
		for range paceFrames {
			it := p.schedule.nextDue(at)
			if it == nil {
				return hasNewOwned
			}

			if it.lane == endLane {
				p.schedule.complete(it, at)
				if k.endPhase(p, it, at) {
					hasNewOwned = true
				}

				continue
			}

			if !k.sendNext(p, it, at) {
				p.resumeAt = at.Add(paceInterval)
				return hasNewOwned
			}
		}
	}

	return hasNewOwned
}

// sendNext sends the next frame of an item, and reports whether the link took it.
func (k *portKeeper) sendNext(p *linkPort, it *item, at time.Time) bool {
	to, frames := p.nextRecipient(it, at)
	if !k.sendStep(p, it, to) {
		return false
	}

	s := p.schedule
	s.spend(frames, it.lane, at)
	if to != nil {
		it.notified++
		return true
	}

	s.complete(it, at)
	k.markAnnounced(it)
	switch it.purpose {
	case defence:
		k.r.counters.repairs[repairConflict].Add(1)
	case duplicateCheck:
		_, hasConflict := it.status.conflict(p.link.Load().Name)
		switch {
		case hasConflict:
			s.checkDuplicate(it.addr, at.Add(duplicateCheckInterval))
		case s.isNew(it.addr, at):
			s.checkDuplicate(it.addr, at.Add(moveTime)) // after contestWait, or a foreign machine's claim
		}
	}

	return true
}

// markAnnounced notes that an address is announced, once all neighbours on every link got its first announcement.
func (k *portKeeper) markAnnounced(it *item) {
	if it.purpose != steps || it.phase != owned || it.status.isAnnounced.Load() {
		return
	}

	for _, p := range k.ports {
		other := p.schedule.items[it.itemKey]
		if other != nil && other.phase == owned && other.step == 0 {
			return
		}
	}

	it.status.isAnnounced.Store(true)
}

// nextRecipient returns the machine that gets an item's next frame before all neighbours do, and for how many frames
// that counts. It is nil for all neighbours. Gateways that learn from requests only get one before each repetition. A
// single machine gets half of the rate at most.
func (p *linkPort) nextRecipient(it *item, at time.Time) (to *machine, frames int) {
	isAnnouncement := it.phase == owned && it.purpose == steps
	var machines []machine
	switch {
	case it.purpose == directDefence:
		machines = p.machinesNear(it.addr)
	case it.lane == firstLane && p.schedule.hasRoom(at):
		machines = p.machinesNear(it.addr)
	case isAnnouncement && it.lane != firstLane && p.r.config.AnnounceByRequest:
		isHost := func(m machine) bool { return !m.isGateway() }
		machines = slices.DeleteFunc(p.machinesNear(it.addr), isHost)
	}

	switch {
	case it.notified >= len(machines) && it.purpose == directDefence:
		return nil, 0
	case it.notified >= len(machines):
		return nil, 1
	case len(machines) == 1 && it.purpose == steps: // defences have half of the rate in any case
		return &machines[0], 2
	}

	return &machines[it.notified], 1
}

// sendStep sends the frame of an item's present step, and reports whether the link took it.
func (k *portKeeper) sendStep(p *linkPort, it *item, to *machine) bool {
	switch {
	case it.status.phaseOn(p.link.Load().Name) != it.phase:
		return true // the phase has ended meanwhile
	case it.purpose == directDefence && to == nil:
		return true // every known machine got it
	case it.purpose == duplicateCheck:
		return p.checkDuplicate(it.addr)
	case it.phase != owned:
		return p.probe(it.addr)
	}

	turn := it.step
	if turn >= len(k.r.config.Timers.AnnounceTimes) {
		turn = 0 // the slow refresh: the form that RFC 5227 section 2.3 names
	}

	return p.announce(it.addr, turn, to)
}

// endPhase ends a phase on a link, and reports whether this node owns the address there since.
func (k *portKeeper) endPhase(p *linkPort, it *item, at time.Time) (isOwned bool) {
	linkName := p.link.Load().Name
	switch it.phase {
	case probing:
		// No machine answered.
		isOwned = true
		it.status.setConflict(linkName)
		if it.status.transition(probing, owned) {
			k.r.counters.takeovers[familyIndex(lb.FamilyOf(it.addr))].Add(1)
		}
	case conflicting:
		c, found := it.status.conflict(linkName)
		if found {
			c.phase = probing
			it.status.setConflict(linkName, c)
		}
	case handingOver:
		if it.status.transition(handingOver, released) {
			k.r.counters.handovers[handoverUnheard].Add(1)
			k.r.config.Log.Warn(
				"address released although no new owner was heard",
				"address",
				it.addr,
				"after",
				lingerTime,
			)
		}
	}

	k.r.state.version.Add(1)
	k.reschedule(k.r.table.Load(), it.addr, at)

	return isOwned
}

// announcing reports whether owned addresses are still to be announced for the first time.
func (k *portKeeper) announcing() bool {
	for _, p := range k.ports {
		if len(p.schedule.queues[firstLane]) > 0 {
			return true
		}
	}

	return false
}
