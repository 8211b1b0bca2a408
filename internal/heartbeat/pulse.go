package heartbeat

import "time"

const (
	// maxPause is the most time between the end of a heartbeat process and its next start.
	maxPause = 5 * time.Second
	// lostTime is for how long no heartbeats are sent when their process is ended, startTime the same
	// before the first one: an ordinary process may be kept waiting for a while.
	lostTime, startTime = 3 * time.Second, 10 * time.Second
)

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
