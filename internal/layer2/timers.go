package layer2

import (
	"cmp"
	"time"
)

// Timers are the times of a Responder. A zero field means the default.
type Timers struct {
	// AnnounceTimes are the earliest times of announcements of an address, since its first announcement on a link. They
	// are more than by ANNOUNCE_NUM and ANNOUNCE_INTERVAL (RFC 5227 section 1.1: twice, 2 s apart) and by
	// MAX_NEIGHBOR_ADVERTISEMENT and RetransTimer (RFC 4861 section 10: 3, 1 s apart): a neighbour that misses them
	// sends to the node that had the address before. The two forms of ARP alternate.
	AnnounceTimes []time.Duration
	// RefreshMin and RefreshMax bound the random time between later announcements, so that addresses do not stay in
	// step. They repair the tables of a switch that aged the MAC out, and of a neighbour that a forged claim deceived.
	// Many addresses are announced less often.
	RefreshMin, RefreshMax time.Duration
	// AnnounceWait is the time from the first probe after which the address counts as free (RFC 5227: ANNOUNCE_WAIT of
	// 2 s, from the last probe). A machine that answers later, but within lateAnswerTime, keeps the address.
	AnnounceWait time.Duration
	// RateLimitInterval is the wait before an address in conflict is probed again
	// (RFC 5227 section 1.1: RATE_LIMIT_INTERVAL, 60 s there).
	RateLimitInterval time.Duration
	// Rate is the number of frames in a second on one link, for all purposes.
	Rate int
}

// probeTimes are the times of the probes of a new address. There are PROBE_NUM of them (RFC 5227 section 1.1: 3), but
// in a fraction of PROBE_MIN and PROBE_MAX (1 to 2 s, for hosts that wake from sleep and for links that start): a
// Service waits for the result, and a living host of a LAN answers in a millisecond or two.
var probeTimes = []time.Duration{0, 8 * time.Millisecond, 16 * time.Millisecond}

const (
	// defendInterval is the minimum time between two defences of an address to all neighbours (RFC
	// 5227 section 1.1: DEFEND_INTERVAL).
	defendInterval = 10 * time.Second
	// nearDefendWait is the time from a claim to the defence to each known machine, so that the defence follows the
	// last claim of a burst. nearDefendInterval is the minimum time between two such defences.
	nearDefendWait, nearDefendInterval = 50 * time.Millisecond, time.Second
	// lingerTime is the time after which this node stops to answer for an address of another owner, even if it never
	// heard that owner: a speaker whose API server hangs, and which does not know yet that it is the new owner, notices
	// that after 45 s (ReadIdleTimeout and PingTimeout of client-go).
	lingerTime = time.Minute
	// burst is the number of frames by which first announcements and probes may be ahead of Timers.Rate: a router that
	// takes fewer loses the rest, and storm control may shut the port.
	burst = 1000
	// paceInterval and paceFrames spread a burst: so many frames on a link, then a pause. A link that does not
	// take a frame is tried again after the same pause.
	paceInterval, paceFrames = time.Millisecond, 50
	// checkInterval is the time between two checks of links, sockets and groups without a kick.
	checkInterval = time.Second
)

// withDefaults returns the timers with the defaults of zero fields.
func (t Timers) withDefaults() Timers {
	if t.AnnounceTimes == nil {
		t.AnnounceTimes = []time.Duration{
			0,
			time.Second,
			2 * time.Second,
			4 * time.Second,
			8 * time.Second,
			16 * time.Second,
			32 * time.Second,
		}
	}

	t.RefreshMin = cmp.Or(t.RefreshMin, 30*time.Second)
	t.RefreshMax = cmp.Or(t.RefreshMax, time.Minute)
	t.AnnounceWait = cmp.Or(t.AnnounceWait, 25*time.Millisecond)
	t.RateLimitInterval = cmp.Or(t.RateLimitInterval, 10*time.Second)
	t.Rate = cmp.Or(t.Rate, 500)

	return t
}

// quietRate bounds the later announcements in a second on one link, and the duplicate checks. Each goes to
// every host of the LAN.
const quietRate = 50

// refresh returns the bounds of the time between later announcements of one address, by the number of addresses on its
// link. They grow with the number where the announcements would exceed quietRate.
func (t Timers) refresh(addresses int) (shortest, longest time.Duration) {
	mean := (t.RefreshMin + t.RefreshMax) / 2
	need := time.Duration(addresses) * time.Second / quietRate
	factor := max(1, float64(need)/float64(mean))
	shortest = time.Duration(factor * float64(t.RefreshMin))
	longest = time.Duration(factor * float64(t.RefreshMax))
	return shortest, longest
}

// frames returns how long n frames take at the steady rate.
func (t Timers) frames(n int) time.Duration {
	return time.Duration(n) * time.Second / time.Duration(t.Rate)
}

// times returns when the steps of a phase are due, and when the phase ends unless
// something ends it sooner; 0 is never.
func (t Timers) times(p phase) (steps []time.Duration, end time.Duration) {
	switch p {
	case probing:
		return probeTimes, t.AnnounceWait
	case conflicting:
		return nil, t.RateLimitInterval
	case owned:
		return t.AnnounceTimes, 0
	case handingOver:
		return nil, lingerTime
	}

	return nil, 0
}
