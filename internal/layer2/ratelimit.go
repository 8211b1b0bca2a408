package layer2

import "time"

// paceSlack bounds the delay that a late link may catch up.
const paceSlack = 10 * time.Millisecond

// rateLimit tells how far a link is ahead of its rates. It outlives the link's port. Each field is the time at which
// all frames of a kind so far would have left at their rate.
type rateLimit struct {
	// frames are all frames, at Timers.Rate.
	frames time.Time
	// defences are the defences to single machines, at half of Timers.Rate: a machine that claims without end must not
	// stop the repetitions.
	defences time.Time
	// checks are the duplicate checks, at quietRate.
	checks time.Time
}

// admitsAt returns when a lane may send its next frame.
func (l *rateLimit) admitsAt(lane int, timers Timers) time.Time {
	batch := timers.frames(int(quietRate * refreshBatch / time.Second))
	switch lane {
	case firstLane, probeLane:
		return l.frames.Add(-timers.frames(burst))
	case repeatLane, refreshLane:
		return l.frames.Add(-batch)
	case checkLane:
		return later(l.frames.Add(-batch), l.checks.Add(-refreshBatch))
	case defendLane:
		return later(l.frames, l.defences).Add(-timers.frames(burst / 2))
	}

	return l.frames
}

// spend accounts for frames of a lane.
func (l *rateLimit) spend(frames, lane int, timers Timers, at time.Time) {
	earliest := at.Add(-paceSlack)
	took := timers.frames(frames)
	l.frames = later(l.frames, earliest).Add(took)
	switch lane {
	case defendLane:
		l.defences = later(l.defences, earliest).Add(2 * took)
	case checkLane:
		l.checks = later(l.checks, at).Add(time.Second / quietRate)
	}
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
