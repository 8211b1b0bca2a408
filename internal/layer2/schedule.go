package layer2

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"
)

// refreshBatch is the time for which a later announcement and a duplicate check wait for others, so that a thousand
// addresses wake this process, and all others on the link, five times a second.
const refreshBatch = 200 * time.Millisecond

// repeatBatch is the time between two moments at which announcements of new addresses are repeated.
const repeatBatch = 100 * time.Millisecond

// schedule knows which work is due when on one link, and how fast. It sends nothing.
type schedule struct {
	timers Timers
	limit  *rateLimit
	items  map[itemKey]*item
	queues [lanes]itemHeap
	// announcedCount is the number of owned addresses.
	announcedCount int
	// repeatOrigin is one of the moments at which announcements are repeated, zero before the first repetition.
	repeatOrigin time.Time
	// sparseTimes are every second of AnnounceTimes, for an address that a probe found free: few neighbours have a
	// stale entry for it. That is still more often than RFC 5227 section 2.3 asks for, and for as long as a switch may
	// block a port at its start.
	sparseTimes []time.Duration
	// random chooses a duration from low to high.
	random func(low, high time.Duration) time.Duration
}

// newSchedule returns a schedule without items.
func newSchedule(timers Timers, limit *rateLimit, random func(low, high time.Duration) time.Duration) *schedule {
	s := &schedule{
		timers: timers,
		limit:  limit,
		items:  make(map[itemKey]*item),
		random: random,
	}
	for i := 0; i < len(timers.AnnounceTimes); i += 2 {
		s.sparseTimes = append(s.sparseTimes, timers.AnnounceTimes[i])
	}
	return s
}

// randomBetween returns a random duration from low to high.
func randomBetween(low, high time.Duration) time.Duration {
	return low + rand.N(max(high-low, 0)+1)
}

// setJob sets the job of an address. A new or changed job starts from the beginning; hasStarted reports that it did.
func (s *schedule) setJob(addr netip.Addr, j job, at time.Time) (hasStarted bool) {
	it := s.items[itemKey{addr, steps}]
	if it != nil && it.job == j {
		return false
	}

	s.startJob(addr, j, at)
	return true
}

// repeatAgain begins the repetitions of an announcement again, at once, but not sooner than the first repetition.
func (s *schedule) repeatAgain(addr netip.Addr, at time.Time) {
	it := s.items[itemKey{addr, steps}]
	isAnnounced := it != nil && it.phase == owned && it.step > 0
	if !isAnnounced || at.Sub(it.start) < s.timers.AnnounceTimes[1] {
		return
	}

	s.dequeue(it)
	it.start = at
	it.isProbed = false
	it.step = 1
	it.due = at
	it.lane = repeatLane
	heap.Push(&s.queues[it.lane], it)
}

// repeatOneAgain begins the repetitions of any one owned address again.
func (s *schedule) repeatOneAgain(at time.Time) {
	for _, it := range s.items {
		if it.purpose == steps && it.phase == owned {
			s.repeatAgain(it.addr, at)
			return
		}
	}
}

// defend schedules the defence of an owned address that another machine claimed: soon to the known machines, and to all
// neighbours, not within DEFEND_INTERVAL of the last such defence (RFC 5227 section 2.4). A claim within it is answered
// at its end. All claims until then count as one.
func (s *schedule) defend(addr netip.Addr, at time.Time) {
	own := s.items[itemKey{addr, steps}]
	if own == nil || own.phase != owned {
		return
	}

	s.enqueueExtra(itemKey{addr, directDefence}, own.job, defendLane, at.Add(nearDefendWait), nearDefendInterval)
	s.enqueueExtra(itemKey{addr, defence}, own.job, repeatLane, at, defendInterval)
}

// isRecentlyProbed reports whether a probe found an address free less than lateAnswerTime ago: a late answer to the
// probe may still come.
func (s *schedule) isRecentlyProbed(addr netip.Addr, at time.Time) bool {
	it := s.items[itemKey{addr, steps}]
	return it != nil &&
		it.phase == owned &&
		it.isProbed &&
		at.Sub(it.start) < lateAnswerTime
}

// isNew reports whether an address has been owned for less than moveTime.
func (s *schedule) isNew(addr netip.Addr, at time.Time) bool {
	it := s.items[itemKey{addr, steps}]
	return it != nil && it.phase == owned && at.Sub(it.start) < moveTime
}

// hasRepeatedAnswer records that a speaker answers a duplicate check of an owned address. It reports whether a speaker
// answered one moveTime ago, too.
func (s *schedule) hasRepeatedAnswer(addr netip.Addr, at time.Time) bool {
	it := s.items[itemKey{addr, steps}]
	if it == nil || it.phase != owned {
		return false
	}

	age := at.Sub(it.answeredAt)
	if age > duplicateCheckInterval {
		it.answeredAt = at
		return false
	}

	return age >= moveTime
}

// checkDuplicate schedules a duplicate check of an owned address, for due at the earliest.
func (s *schedule) checkDuplicate(addr netip.Addr, due time.Time) {
	own := s.items[itemKey{addr, steps}]
	if own != nil && own.phase == owned {
		s.enqueueExtra(itemKey{addr, duplicateCheck}, own.job, checkLane, due, 0)
	}
}

// enqueueExtra queues a defence or a duplicate check, for due at the earliest and at least interval after the last
// item. An item that is queued for a sooner time stays.
func (s *schedule) enqueueExtra(k itemKey, j job, lane int, due time.Time, interval time.Duration) {
	it := s.items[k]
	if it == nil {
		it = &item{
			itemKey: k,
			job:     j,
			lane:    lane,
			pos:     -1,
		}
		s.items[k] = it
	}

	due = later(due, it.start.Add(interval))
	isQueued := it.pos >= 0
	if isQueued && !due.Before(it.due) {
		return
	}

	s.dequeue(it)
	it.due = due
	heap.Push(&s.queues[it.lane], it)
}

// startJob replaces the items of an address by a job from its beginning.
func (s *schedule) startJob(addr netip.Addr, j job, at time.Time) {
	it := &item{
		itemKey: itemKey{addr, steps},
		job:     j,
		start:   at,
	}
	before := s.items[it.itemKey]
	if before != nil {
		it.isProbed = before.phase == probing
	}

	s.remove(addr)
	s.items[it.itemKey] = it
	if j.phase == owned {
		s.announcedCount++
		s.checkDuplicate(addr, at.Add(moveTime))
	}

	s.enqueue(it, at)
}

// remove removes all items of an address.
func (s *schedule) remove(addr netip.Addr) {
	for p := range purposes {
		it := s.items[itemKey{addr, p}]
		if it == nil {
			continue
		}

		s.dequeue(it)
		delete(s.items, it.itemKey)
		if p == steps && it.phase == owned {
			s.announcedCount--
		}
	}
}

// nextDue returns the item whose step is next, nil if none is due.
func (s *schedule) nextDue(at time.Time) *item {
	for lane, q := range s.queues {
		if len(q) > 0 && !s.opensAt(lane).After(at) {
			return q[0]
		}
	}

	return nil
}

// opensAt returns when the first item of a lane may go: when it is due, and the rate limit admits it.
func (s *schedule) opensAt(lane int) time.Time {
	due := s.queues[lane][0].due
	if lane == endLane {
		return due
	}

	return later(due, s.limit.admitsAt(lane, s.timers))
}

// hasRoom reports whether all waiting first announcements fit into half of the burst.
func (s *schedule) hasRoom(at time.Time) bool {
	room := burst/2 - len(s.queues[firstLane])
	return s.limit.frames.Sub(at) < s.timers.frames(room)
}

// spend accounts for frames on the link.
func (s *schedule) spend(frames, lane int, at time.Time) {
	s.limit.spend(frames, lane, s.timers, at)
}

// complete schedules the step of an item that follows the present one. A defence waits for another claim, and a
// duplicate check is removed.
func (s *schedule) complete(it *item, at time.Time) {
	s.dequeue(it)
	it.step++
	it.notified = 0
	switch it.purpose {
	case steps:
		base := it.due
		if it.step == 1 || at.Sub(base) > paceSlack {
			base = at
		}

		s.enqueue(it, base)
	case duplicateCheck: // the next one need not keep a distance
		delete(s.items, it.itemKey)
	default:
		it.start = at
	}
}

// phaseTimes returns when the steps of an item's phase are due, and when the phase ends, both since its start. An end
// of 0 is never.
func (s *schedule) phaseTimes(it *item, at time.Time) (times []time.Duration, end time.Duration) {
	times, end = s.timers.times(it.phase)
	switch {
	case it.phase == probing && it.status.isReclaimed(at):
		return times[:1], time.Nanosecond
	case it.phase == owned && it.isProbed:
		return s.sparseTimes, end
	}

	return times, end
}

// enqueue queues an item for its next step. base is when the last step was due, or when the job started. Steps keep
// their distance if the rate limit delays one of them. Late timers do not add up, since a Service waits for the end.
func (s *schedule) enqueue(it *item, base time.Time) {
	times, end := s.phaseTimes(it, base)
	it.lane = repeatLane
	it.pos = -1
	var last time.Duration
	if it.step > 0 && it.step <= len(times) {
		last = times[it.step-1]
	}

	switch {
	case it.step < len(times):
		it.lane, it.due = s.nextStep(it, base, times[it.step]-last)
	case it.phase == owned:
		it.lane = refreshLane
		it.due = base.Add(s.random(s.timers.refresh(s.announcedCount)))
	case it.step == len(times) && end > 0:
		it.lane = endLane
		it.due = base.Add(end - last)
	default:
		return
	}

	heap.Push(&s.queues[it.lane], it)
}

// nextStep returns the lane and the time of the next step of an item, wait after base. Repetitions change their order,
// so that a router that takes only some of them does not lose the same ones each time.
func (s *schedule) nextStep(it *item, base time.Time, wait time.Duration) (lane int, due time.Time) {
	switch {
	case it.phase != owned:
		return probeLane, base.Add(wait)
	case it.step == 0:
		return firstLane, base.Add(wait)
	}

	longest := wait + max(0, wait/4-repeatBatch)
	return repeatLane, s.alignRepeat(base.Add(s.random(wait, longest)))
}

// alignRepeat returns the first moment at which announcements are repeated, at the given time or after it: each wake-up
// costs.
func (s *schedule) alignRepeat(at time.Time) time.Time {
	if s.repeatOrigin.IsZero() {
		s.repeatOrigin = at
	}
	return at.Add((repeatBatch - at.Sub(s.repeatOrigin)%repeatBatch) % repeatBatch)
}

// dequeue removes an item from its queue, if it is in one.
func (s *schedule) dequeue(it *item) {
	if it.pos >= 0 {
		heap.Remove(&s.queues[it.lane], it.pos)
		it.pos = -1
	}
}

// never is the time until the next task where there is none.
const never time.Duration = math.MaxInt64

// untilNext returns the time until the next task may go, never if there is none.
func (s *schedule) untilNext(at time.Time) time.Duration {
	wait := never
	for lane, q := range s.queues {
		if len(q) == 0 {
			continue
		}

		until := s.opensAt(lane).Sub(at)
		if lane == refreshLane || lane == checkLane {
			until += refreshBatch
		}

		wait = min(wait, until)
	}

	return wait
}
