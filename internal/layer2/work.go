package layer2

import (
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// lapseInterval is how often a lapsed lease is checked.
const lapseInterval = 5 * time.Millisecond

// work does the due tasks, a few addresses at a time, and returns how long to pause;
// false if nothing is scheduled.
func (k *keeper) work() (time.Duration, bool) {
	now := k.r.now()
	if now.Before(k.paced) {
		return k.paced.Sub(now), true
	}
	if !k.r.lease.valid() {
		return lapseInterval, len(k.schedule.items) > 0
	}
	due := k.schedule.take(now, k.r.timers.PaceAddresses)
	changed := false
	for _, t := range due {
		if t.ends {
			changed = k.end(t, now) || changed
		} else {
			k.step(t)
		}
	}
	if changed {
		k.r.changed()
	}
	if len(due) == k.r.timers.PaceAddresses {
		k.paced = now.Add(k.r.timers.PaceInterval)
		return k.r.timers.PaceInterval, true
	}
	wait, ok := k.schedule.next(now)
	return max(wait, 0), ok
}

// step does one step of a job.
func (k *keeper) step(t task) {
	p := k.ports[t.index]
	switch {
	case t.status.is() != t.phase:
		// The phase has ended meanwhile.
	case t.phase == ours:
		turn := t.number
		if turn >= len(k.r.timers.AnnounceTimes) {
			turn = 0 // the slow refresh: the form that RFC 5227 section 2.3 names, and that other speakers audit
		}
		p.announce(t.addr, turn)
	default:
		if t.phase == handing && k.r.timers.HandoverTimes[t.number] > unheardTime {
			t.status.unheard.Store(true)
		}
		p.probe(t.addr)
	}
}

// end ends a phase, and reports whether the address is ours now.
func (k *keeper) end(t task, now time.Time) bool {
	var became bool
	switch t.phase {
	case probing:
		// No machine answered.
		became = t.status.become(probing, ours)
		if became {
			t.status.conflict.Store(nil)
			k.r.counts.takeovers[number(lb.FamilyOf(t.addr))].Add(1)
		}
	case conflicting:
		t.status.become(conflicting, probing)
	case handing:
		if t.status.become(handing, gone) {
			k.r.counts.handovers[unheard].Add(1)
			k.r.log.Warn("address released although no new owner was heard", "address", t.addr, "after", k.r.timers.LingerTime)
		}
	}
	k.reschedule(t.addr, now)
	return became
}
