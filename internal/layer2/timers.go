package layer2

import "time"

// Timers of a Responder; a zero field means its default.
type Timers struct {
	// AnnounceTimes are when an address is announced after it became ours on a
	// link. More often and sooner than ANNOUNCE_NUM and ANNOUNCE_INTERVAL (RFC
	// 5227 section 1.1: twice, 2 s apart) and MAX_NEIGHBOR_ADVERTISEMENT and
	// RetransTimer (RFC 4861 section 10: 3, 1 s apart): a neighbour that misses
	// them sends to the node that had the address before.
	AnnounceTimes []time.Duration
	// RefreshMin and RefreshMax bound the time between announcements after those,
	// chosen anew each time, so that addresses do not stay in step. They mend what
	// a forgetful switch or a lie told to one neighbour alone has done.
	RefreshMin, RefreshMax time.Duration
	// ProbeTimes are when a new address is asked for. As often as PROBE_NUM (RFC
	// 5227 section 1.1: 3), but in a fraction of PROBE_MIN and PROBE_MAX (1 to 2 s,
	// made for hosts that come from sleep): a Service waits for it.
	ProbeTimes []time.Duration
	// AnnounceWait is when the address is taken to be free (RFC 5227: ANNOUNCE_WAIT,
	// counted from the first probe here).
	AnnounceWait time.Duration
	// DefendInterval is the least time between two defences of an address (RFC
	// 5227 section 1.1: DEFEND_INTERVAL).
	DefendInterval time.Duration
	// RateLimitInterval is how long an address rests that somebody else has,
	// before it is probed again (RFC 5227 section 1.1: RATE_LIMIT_INTERVAL, 60 s there).
	RateLimitInterval time.Duration
	// HandoverTimes are when the node that is to announce an address is asked
	// whether it does, and LingerTime is when it is answered here no more in any case.
	HandoverTimes []time.Duration
	LingerTime    time.Duration
	// PaceInterval and PaceAddresses spread what is due at once: so many
	// addresses, then a rest.
	PaceInterval  time.Duration
	PaceAddresses int
	// CheckInterval is how often links, sockets and groups are looked after unasked.
	CheckInterval time.Duration
}

func (t Timers) withDefaults() Timers {
	const ms = time.Millisecond
	for field, value := range map[*[]time.Duration][]time.Duration{
		&t.AnnounceTimes: {0, 50 * ms, 150 * ms, 500 * ms, time.Second, 2 * time.Second},
		&t.ProbeTimes:    {0, 70 * ms, 140 * ms},
		&t.HandoverTimes: {0, 50 * ms, 150 * ms, 350 * ms, 750 * ms, 1500 * ms},
	} {
		if *field == nil {
			*field = value
		}
	}
	for field, value := range map[*time.Duration]time.Duration{
		&t.RefreshMin:        30 * time.Second,
		&t.RefreshMax:        time.Minute,
		&t.AnnounceWait:      200 * ms,
		&t.DefendInterval:    10 * time.Second,
		&t.RateLimitInterval: 10 * time.Second,
		&t.LingerTime:        2 * time.Second,
		&t.PaceInterval:      ms,
		&t.CheckInterval:     time.Second,
	} {
		if *field == 0 {
			*field = value
		}
	}
	if t.PaceAddresses == 0 {
		t.PaceAddresses = 50
	}
	return t
}

// times returns when something is to be done for an address that came to a
// phase, and when the phase ends unless something ends it sooner; 0 is never.
func (t Timers) times(p phase) (steps []time.Duration, end time.Duration) {
	switch p {
	case probing:
		return t.ProbeTimes, t.AnnounceWait
	case conflicting:
		return nil, t.RateLimitInterval
	case ours:
		return t.AnnounceTimes, 0
	case handing:
		return t.HandoverTimes, t.LingerTime
	}
	return nil, 0
}
