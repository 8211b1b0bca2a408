package layer2

import (
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// lapseInterval is how often a lapsed lease is checked.
const lapseInterval = 5 * time.Millisecond

// work does the due tasks, a few on each link at a time, and returns how long to pause.
func (k *keeper) work() time.Duration {
	now := k.r.now()
	if !k.r.lease.valid() && len(k.ports) > 0 {
		return lapseInterval
	}

	changed := false
	for _, p := range k.ports {
		changed = k.drain(p, now) || changed
	}

	if changed {
		k.r.changed()
	}

	wait := never
	for _, p := range k.ports {
		wait = min(wait, max(p.schedule.next(now), p.resume.Sub(now)))
	}

	return max(wait, 0)
}

// drain does due tasks of a link, and reports whether an address became ours. A task that the link does not take keeps
// its place; no other link waits for it. What a late wake-up missed is made up for: on a busy node each may be some
// milliseconds late, and a burst has many.
func (k *keeper) drain(p *port, now time.Time) (changed bool) {
	if now.Sub(p.resume) > paceSlack {
		p.resume = now
	}

	for ; !now.Before(p.resume); p.resume = p.resume.Add(paceInterval) {
		for range paceFrames {
			it := p.schedule.due(now)
			if it == nil {
				return changed
			}

			if it.lane == ending {
				p.schedule.done(it, now)
				changed = k.end(p, it, now) || changed
			} else if !k.do(p, it, now) {
				p.resume = now.Add(paceInterval)
				return changed
			}
		}
	}

	return changed
}

// do sends the next frame of an item, and reports whether the link took it.
func (k *keeper) do(p *port, it *item, now time.Time) bool {
	to, frames := p.direct(it, now)
	if !k.step(p, it, to) {
		return false
	}

	s := p.schedule
	s.spend(frames, it.lane, now)
	if to != nil {
		it.told++
		return true
	}

	s.done(it, now)
	k.told(it)
	switch {
	case it.use == defence:
		k.r.counts.repairs[repairConflict].Add(1)
	case it.use == doubt:
		if _, still := it.status.conflict(p.link.Load().Name); still {
			s.doubt(it.addr, now.Add(doubtInterval))
		}
	}

	return true
}

// told notes that all neighbours on every link have heard the first announcement of an address.
func (k *keeper) told(it *item) {
	if it.use != steps || it.phase != ours || it.status.announced.Load() {
		return
	}

	for _, p := range k.ports {
		if other := p.schedule.items[it.key]; other != nil && other.phase == ours && other.number == 0 {
			return
		}
	}

	it.status.announced.Store(true)
}

// direct returns the machine that hears of an address next, before all do, and for how many frames that counts. It is
// nil for all neighbours. Gateways that learn from requests only get one before each repetition. A machine that is the
// only one gets half of the pace at most.
func (p *port) direct(it *item, now time.Time) (to *machine, frames int) {
	var machines []machine
	switch {
	case it.use == nearDefence, it.lane == first && p.schedule.roomy(now):
		machines = p.near(it.addr)
	case p.r.config.Requests && it.phase == ours && it.use == steps && it.lane != first:
		machines = slices.DeleteFunc(p.near(it.addr), func(m machine) bool { return !m.isGateway() })
	}

	switch {
	case it.told >= len(machines) && it.use == nearDefence:
		return nil, 0
	case it.told >= len(machines):
		return nil, 1
	case len(machines) == 1 && it.use == steps: // defences have half of the pace in any case
		return &machines[0], 2
	}

	return &machines[it.told], 1
}

// step does one step of a job, and reports whether the link took it.
func (k *keeper) step(p *port, it *item, to *machine) bool {
	switch {
	case it.status.on(p.link.Load().Name) != it.phase:
		return true // the phase has ended meanwhile
	case it.use == nearDefence && to == nil:
		return true // all have heard
	case it.use == doubt:
		return p.doubt(it.addr)
	case it.phase == ours:
		turn := it.number
		if turn >= len(k.r.config.Timers.AnnounceTimes) {
			turn = 0 // the slow refresh: the form that RFC 5227 section 2.3 names
		}
		return p.announce(it.addr, turn, to)
	}

	return p.probe(it.addr)
}

// end ends a phase on a link, and reports whether the address is ours there now.
func (k *keeper) end(p *port, it *item, now time.Time) (became bool) {
	name := p.link.Load().Name
	switch it.phase {
	case probing:
		// No machine answered.
		became = true
		it.status.setConflict(name)
		if it.status.become(probing, ours) {
			k.r.counts.takeovers[number(lb.FamilyOf(it.addr))].Add(1)
		}
	case conflicting:
		if c, found := it.status.conflict(name); found {
			c.phase = probing
			it.status.setConflict(name, c)
		}
	case handing:
		if it.status.become(handing, gone) {
			k.r.counts.handovers[unheard].Add(1)
			k.r.config.Log.Warn(
				"address released although no new owner was heard",
				"address",
				it.addr,
				"after",
				lingerTime,
			)
		}
	}

	k.r.version.Add(1)
	k.reschedule(k.r.table.Load(), it.addr, now)
	return became
}

// announcing reports whether addresses that just became ours are still to be announced for the first time.
func (k *keeper) announcing() bool {
	for _, p := range k.ports {
		if len(p.schedule.queues[first]) > 0 {
			return true
		}
	}
	return false
}
