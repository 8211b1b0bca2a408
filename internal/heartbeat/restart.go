package heartbeat

import "time"

const (
	// forgiveTime is how long a heartbeat process must have lived for its end to be no worse than the first.
	forgiveTime   = time.Hour
	maxPause      = 5 * time.Second
	firstCooldown = time.Minute
	// lostTime is for how long no heartbeats are sent when their process is ended, startTime the same
	// before the first one: an ordinary process may be kept waiting for a while.
	lostTime, startTime = 3 * time.Second, 10 * time.Second
)

// restarts decides how a heartbeat process that ended by itself is started again: at once the first time; then after a
// pause, and without real-time priority for a while, since the kernel may have killed it for that.
type restarts struct {
	times           int
	pause, cooldown time.Duration
}

func (r *restarts) ended(lived time.Duration) {
	if lived > forgiveTime {
		*r = restarts{}
	}
	if r.times++; r.times > 1 {
		r.pause = min(max(2*r.pause, time.Second), maxPause)
		r.cooldown = min(max(2*r.cooldown, firstCooldown), forgiveTime)
	}
}

// pulse notices that heartbeats are not sent any more. It counts how often it looked, not time: the
// process that looks may itself not have run.
type pulse struct {
	deadline int64
	began    bool
	looks    int
}

// lost is called each keepaliveInterval with the deadline of the Lease, which every heartbeat moves.
func (p *pulse) lost(deadline int64) bool {
	if deadline != p.deadline {
		p.deadline, p.began, p.looks = deadline, true, 0
		return false
	}
	p.looks++
	patience := startTime
	if p.began {
		patience = lostTime
	}
	return time.Duration(p.looks)*keepaliveInterval >= patience
}
