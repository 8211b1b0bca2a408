package layer2

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"
)

// job is the work for an address. It restarts with another status or phase.
type job struct {
	phase  phase
	status *status
}

// use is what an item of an address is for.
type use uint8

const (
	// steps of the job.
	steps use = iota
	// nearDefence and defence answer another's claim: to the machines that we know, and to all neighbours.
	nearDefence
	defence
	// doubt asks all neighbours who else has it.
	doubt
)

// key names an item.
type key struct {
	addr netip.Addr
	use  use
}

// item is a job with its next step, or a defence or a question meanwhile.
type item struct {
	key
	job
	// number of the step or defence, from 0, and how many machines heard of it by themselves already.
	number, told int
	// start of the job, or the last defence. won: the address became ours by a probe.
	start time.Time
	won   bool
	due   time.Time
	// lane and pos are its place in the queues, pos -1 for none.
	lane, pos int
}

// Lanes, in the order in which they are served: others wait for first announcements, and Services for probes. The end
// of a phase sends nothing.
const (
	ending = iota
	first
	asking
	defending
	repeated
	refreshing
	doubting

	lanes
)

// refreshBatch is how long a later announcement and a question wait for others, so that a thousand addresses wake this
// process, and all others on the link, five times a second.
const refreshBatch = 200 * time.Millisecond

// repeatBatch is the time between two moments at which announcements of new addresses are repeated.
const repeatBatch = 100 * time.Millisecond

// pace is how far one link is ahead of the steady rate. It outlives the link's port.
type pace struct {
	// free is when all frames so far would have left at that rate.
	free time.Time
	// defended is the same at half of the rate for defences to single machines: who claims without end must not stop
	// the repetitions. doubted is when all questions so far who else has an address would have left at their rate.
	defended, doubted time.Time
}

// paceSlack is how much a link that is late may catch up.
const paceSlack = 10 * time.Millisecond

// schedule knows which work is due when on one link, and how fast; it sends nothing.
type schedule struct {
	timers Timers
	pace   *pace
	items  map[key]*item
	queues [lanes]queue
	// announced is the number of our addresses, and repeats one of the moments at which announcements are repeated.
	announced int
	repeats   time.Time
	// seldom has every second one of AnnounceTimes, for an address that a probe found free: hardly a neighbour knows
	// another machine that had it. That is still more often than RFC 5227 asks for (section 2.3), and for as long as a
	// port of a switch may block at its start.
	seldom []time.Duration
	// between chooses a time.
	between func(low, high time.Duration) time.Duration
}

func newSchedule(timers Timers, p *pace, between func(low, high time.Duration) time.Duration) *schedule {
	s := &schedule{timers: timers, pace: p, items: make(map[key]*item), between: between}
	for i := 0; i < len(timers.AnnounceTimes); i += 2 {
		s.seldom = append(s.seldom, timers.AnnounceTimes[i])
	}
	return s
}

func between(low, high time.Duration) time.Duration {
	return low + rand.N(max(high-low, 0)+1)
}

// put sets one address's job. A new or changed one starts from the beginning.
func (s *schedule) put(addr netip.Addr, j job, now time.Time) {
	if it := s.items[key{addr, steps}]; it == nil || it.job != j {
		s.start(addr, j, now)
	}
}

// restart starts the repetitions of an announcement again, at once, but not sooner than after the first one.
func (s *schedule) restart(addr netip.Addr, now time.Time) {
	if it := s.items[key{addr, steps}]; it != nil &&
		it.phase == ours &&
		it.number > 0 &&
		now.Sub(it.start) >= s.timers.AnnounceTimes[1] {
		s.unqueue(it)
		it.start, it.won, it.number, it.due, it.lane = now, false, 1, now, repeated
		heap.Push(&s.queues[it.lane], it)
	}
}

// restartOne does so for one of the addresses.
func (s *schedule) restartOne(now time.Time) {
	for _, it := range s.items {
		if it.use == steps && it.phase == ours {
			s.restart(it.addr, now)
			return
		}
	}
}

// defend schedules the defence of an announced address that another machine claimed: shortly for the machines that we
// know, and for all neighbours, not within DEFEND_INTERVAL of the last such defence (RFC 5227 section 2.4). A claim
// that comes sooner is answered when that is over, and claims that come meanwhile count as one.
func (s *schedule) defend(addr netip.Addr, now time.Time) {
	own := s.items[key{addr, steps}]
	if own == nil || own.phase != ours {
		return
	}
	s.extra(key{addr, nearDefence}, own.job, defending, now.Add(nearDefendWait), nearDefendInterval)
	s.extra(key{addr, defence}, own.job, repeated, now, defendInterval)
}

// early reports whether an address became ours by a probe so lately that another machine may yet answer that.
func (s *schedule) early(addr netip.Addr, now time.Time) bool {
	it := s.items[key{addr, steps}]
	return it != nil && it.phase == ours && it.won && now.Sub(it.start) < lateTime
}

// doubt asks who else has an announced address, at a time at the earliest.
func (s *schedule) doubt(addr netip.Addr, due time.Time) {
	if own := s.items[key{addr, steps}]; own != nil && own.phase == ours {
		s.extra(key{addr, doubt}, own.job, doubting, due, 0)
	}
}

// extra queues a defence or a question, for due at the earliest and so long after the last one, unless it is queued for
// sooner.
func (s *schedule) extra(k key, j job, lane int, due time.Time, interval time.Duration) {
	it := s.items[k]
	if it == nil {
		it = &item{key: k, job: j, lane: lane, pos: -1}
		s.items[k] = it
	}

	due = later(due, it.start.Add(interval))
	if it.pos >= 0 && !due.Before(it.due) {
		return
	}

	s.unqueue(it)
	it.due = due
	heap.Push(&s.queues[it.lane], it)
}

func (s *schedule) start(addr netip.Addr, j job, now time.Time) {
	it := &item{key: key{addr, steps}, job: j, start: now}
	if before := s.items[it.key]; before != nil {
		it.won = before.phase == probing
	}

	s.drop(addr)
	s.items[it.key] = it
	if j.phase == ours {
		s.announced++
		s.doubt(addr, now.Add(settleTime))
	}

	s.queue(it, now)
}

func (s *schedule) drop(addr netip.Addr) {
	for _, u := range [...]use{steps, nearDefence, defence, doubt} {
		it := s.items[key{addr, u}]
		if it == nil {
			continue
		}

		s.unqueue(it)
		delete(s.items, it.key)
		if u == steps && it.phase == ours {
			s.announced--
		}
	}
}

// due returns the item whose step is next, nil if none is due.
func (s *schedule) due(now time.Time) *item {
	for lane, q := range s.queues {
		if len(q) > 0 && !s.opens(lane).After(now) {
			return q[0]
		}
	}
	return nil
}

// opens returns when the first item of a lane may go: when it is due, and the pace admits it.
func (s *schedule) opens(lane int) time.Time {
	due, batch := s.queues[lane][0].due, -s.timers.frames(int(quietRate*refreshBatch/time.Second))
	switch lane {
	case ending:
		return due
	case first, asking:
		return later(due, s.pace.free.Add(-s.timers.frames(burst)))
	case repeated, refreshing: // a batch at once
		return later(due, s.pace.free.Add(batch))
	case doubting:
		return later(due, later(s.pace.free.Add(batch), s.pace.doubted.Add(-refreshBatch)))
	case defending:
		half := -s.timers.frames(burst / 2)
		return later(due, later(s.pace.free, s.pace.defended).Add(half))
	}

	return later(due, s.pace.free)
}

// roomy reports whether half of the burst holds all that waits for its first announcement, and more.
func (s *schedule) roomy(now time.Time) bool {
	return s.pace.free.Sub(now) < s.timers.frames(burst/2-len(s.queues[first]))
}

// spend accounts for frames on the link.
func (s *schedule) spend(frames int, lane int, now time.Time) {
	s.pace.free = later(s.pace.free, now.Add(-paceSlack)).Add(s.timers.frames(frames))
	switch lane {
	case defending:
		s.pace.defended = later(s.pace.defended, now.Add(-paceSlack)).Add(2 * s.timers.frames(frames))
	case doubting:
		s.pace.doubted = later(s.pace.doubted, now).Add(time.Second / quietRate)
	}
}

// done schedules the following step of an item. A defence or a question waits for another claim.
func (s *schedule) done(it *item, now time.Time) {
	s.unqueue(it)
	it.number++
	it.told = 0
	switch it.use {
	case steps:
		at := it.due
		if it.number == 1 || now.Sub(at) > paceSlack {
			at = now
		}
		s.queue(it, at)
	case doubt: // the next one need not keep a distance
		delete(s.items, it.key)
	default:
		it.start = now
	}
}

// queue finds when the next step of an item is due, and queues it for that time. Steps keep their distance if the pace
// delays one of them, but what timers are late does not add up, since a Service waits for the end. Repetitions change
// their order, so that a router that takes some of them does not lose the same ones each time.
func (s *schedule) queue(it *item, now time.Time) {
	times, end := s.timers.times(it.phase)
	if it.phase == probing && now.Sub(it.status.left) < leftTime && len(*it.status.conflicts.Load()) == 0 {
		times, end = times[:1], time.Nanosecond
	}

	if it.won && it.phase == ours {
		times = s.seldom
	}

	it.lane, it.pos = repeated, -1
	var before time.Duration
	if it.number > 0 && it.number <= len(times) {
		before = times[it.number-1]
	}

	switch {
	case it.number < len(times):
		wait := times[it.number] - before
		it.due = now.Add(wait)
		switch {
		case it.phase == ours && it.number == 0:
			it.lane = first
		case it.phase == ours:
			it.due = s.together(now.Add(s.between(wait, wait+max(0, wait/4-repeatBatch))))
		default:
			it.lane = asking
		}
	case it.phase == ours:
		it.lane, it.due = refreshing, now.Add(s.between(s.timers.refresh(s.announced)))
	case it.number == len(times) && end > 0:
		it.lane, it.due = ending, now.Add(end-before)
	default:
		return
	}

	heap.Push(&s.queues[it.lane], it)
}

// together returns when repetitions of others are due too, at the time or after it: each wake-up costs.
func (s *schedule) together(at time.Time) time.Time {
	if s.repeats.IsZero() {
		s.repeats = at
	}
	return at.Add((repeatBatch - at.Sub(s.repeats)%repeatBatch) % repeatBatch)
}

func (s *schedule) unqueue(it *item) {
	if it.pos >= 0 {
		heap.Remove(&s.queues[it.lane], it.pos)
		it.pos = -1
	}
}

// never is the time until the next task where there is none.
const never time.Duration = math.MaxInt64

// next returns the time until the next task may go.
func (s *schedule) next(now time.Time) time.Duration {
	wait := never
	for lane, q := range s.queues {
		if len(q) == 0 {
			continue
		}

		until := s.opens(lane).Sub(now)
		if lane == refreshing || lane == doubting {
			until += refreshBatch
		}

		wait = min(wait, until)
	}

	return wait
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// queue is a heap of items, ordered by due time.
type queue []*item

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].pos, q[j].pos = i, j
}

// Push is for container/heap.
func (q *queue) Push(x any) {
	it := x.(*item)
	it.pos = len(*q)
	*q = append(*q, it)
}

// Pop is for container/heap.
func (q *queue) Pop() any {
	old := *q
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return it
}
