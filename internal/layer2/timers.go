package layer2

import (
	"cmp"
	"time"
)

// Timers of a Responder; a zero field means the default.
type Timers struct {
	// AnnounceTimes are when an address is announced, at the earliest, after it was first announced on a
	// link. That is more often than ANNOUNCE_NUM and ANNOUNCE_INTERVAL (RFC
	// 5227 section 1.1: twice, 2 s apart) and MAX_NEIGHBOR_ADVERTISEMENT and
	// RetransTimer (RFC 4861 section 10: 3, 1 s apart): a neighbour that misses
	// them sends to the node that had the address before. The two forms of ARP
	// take turns.
	AnnounceTimes []time.Duration
	// RefreshMin and RefreshMax bound the random time between later announcements, so
	// that addresses do not stay in step. These repair the tables of a switch that aged
	// the MAC out, and of a neighbour that a forged claim deceived. Many addresses are announced less often.
	RefreshMin, RefreshMax time.Duration
	// AnnounceWait is when the address counts as free (RFC 5227: ANNOUNCE_WAIT, 2 s, but
	// counted from the first probe). A machine that answers later, but within lateAnswerTime, keeps the address all the
	// same.
	AnnounceWait time.Duration
	// RateLimitInterval is the wait before an address in conflict is probed again
	// (RFC 5227 section 1.1: RATE_LIMIT_INTERVAL, 60 s there).
	RateLimitInterval time.Duration
	// Rate is how many frames a second one link gets, whatever they are for.
	Rate int
}

// probeTimes are when a new address is probed: as often as PROBE_NUM (RFC 5227
// section 1.1: 3), but in a fraction of PROBE_MIN and PROBE_MAX (1 to 2 s, meant
// for hosts that wake from sleep and for links that start), since a Service waits
// for it, and a living host of a LAN answers in a millisecond or two.
var probeTimes = []time.Duration{0, 8 * time.Millisecond, 16 * time.Millisecond}

const (
	// defendInterval is the minimum time between two defences of an address to all neighbours (RFC
	// 5227 section 1.1: DEFEND_INTERVAL).
	defendInterval = 10 * time.Second
	// nearDefendWait is the time from a claim to the defence to each known machine, so that the defence follows the last
	// claim of a burst. nearDefendInterval is the minimum time between two such defences.
	nearDefendWait, nearDefendInterval = 50 * time.Millisecond, time.Second
	// lingerTime is when this node stops to answer for an address of another owner, even if it never heard that owner: a
	// speaker whose API server hangs, and which does not know yet that it is the new owner, notices that after 45 s
	// (ReadIdleTimeout and PingTimeout of client-go).
	lingerTime = time.Minute
	// burst is how many frames first announcements and probes may be ahead of Timers.Rate: a router that takes fewer
	// loses the rest, and storm control may shut the port.
	burst = 1000
	// paceInterval and paceFrames spread a burst: so many frames on a link, then a pause. A link that does not
	// take a frame is tried again after the same pause.
	paceInterval, paceFrames = time.Millisecond, 50
	// checkInterval is how often links, sockets and groups are checked without a kick.
	checkInterval = time.Second
)

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

// quietRate is how many later announcements a second one link gets at most, and how many duplicate checks. Each goes to
// every host of the LAN.
const quietRate = 50

// refresh returns the bounds of the time between later announcements of one address, by the number of addresses on its
// link. They grow with the number where the announcements would exceed quietRate.
func (t Timers) refresh(addresses int) (shortest, longest time.Duration) {
	mean := (t.RefreshMin + t.RefreshMax) / 2
	need := time.Duration(addresses) * time.Second / quietRate
	factor := max(1, float64(need)/float64(mean))
	return time.Duration(factor * float64(t.RefreshMin)), time.Duration(factor * float64(t.RefreshMax))
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
