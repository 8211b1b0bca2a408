package layer2

import (
	"container/heap"
	"math/rand/v2"
	"net/netip"
	"time"
)

// job is the work for an address. It restarts with another status or phase.
type job struct {
	phase  phase
	status *status
}

// task is one step of a job.
type task struct {
	addr netip.Addr
	job
	// number of the step, from 0.
	number int
	// ends: the end of the phase.
	ends bool
}

// item is a job with its next step.
type item struct {
	task
	start time.Time
	due   time.Time
	// lane and pos are its place in the queues, pos -1 for none.
	lane, pos int
}

// Lanes. The first announcement of an address, for which others wait, overtakes the
// rest. Repetitions come after everything else.
const (
	urgent = iota
	ordinary
	repeated

	lanes
)

// schedule knows which work is due when on one link; it sends nothing.
type schedule struct {
	timers Timers
	items  map[netip.Addr]*item
	queues [lanes]queue
	// announced is the number of our addresses.
	announced int
	// between chooses a time; a field so that tests can replace it.
	between func(low, high time.Duration) time.Duration
}

func newSchedule(timers Timers) *schedule {
	return &schedule{timers: timers, items: make(map[netip.Addr]*item), between: between}
}

func between(low, high time.Duration) time.Duration {
	return low + rand.N(max(high-low, 0)+1)
}

// set takes the whole desired set. New and changed jobs start from the beginning; the
// rest continue.
func (s *schedule) set(want map[netip.Addr]job, now time.Time) {
	for addr := range s.items {
		if _, ok := want[addr]; !ok {
			s.drop(addr)
		}
	}
	for addr, j := range want {
		s.put(addr, j, now)
	}
}

// put sets one address's job.
func (s *schedule) put(addr netip.Addr, j job, now time.Time) {
	if it := s.items[addr]; it == nil || it.job != j {
		s.start(addr, j, now)
	}
}

// restart starts an address's job again, unless it has only just started.
func (s *schedule) restart(addr netip.Addr, now time.Time) {
	const just = 20 * time.Millisecond
	if it := s.items[addr]; it != nil && now.Sub(it.start) > just {
		s.start(addr, it.job, now)
	}
}

func (s *schedule) start(addr netip.Addr, j job, now time.Time) {
	s.drop(addr)
	it := &item{task: task{addr: addr, job: j}, start: now}
	s.items[addr] = it
	if j.phase == ours {
		s.announced++
	}
	s.queue(it, now)
}

func (s *schedule) drop(addr netip.Addr) {
	if it := s.items[addr]; it != nil {
		s.unqueue(it)
		delete(s.items, addr)
		if it.phase == ours {
			s.announced--
		}
	}
}

// due returns the item whose step is next, nil if none is due.
func (s *schedule) due(now time.Time) *item {
	for _, q := range s.queues {
		if len(q) > 0 && !q[0].due.After(now) {
			return q[0]
		}
	}
	return nil
}

// done schedules the following step of an item.
func (s *schedule) done(it *item, now time.Time) {
	s.unqueue(it)
	it.number++
	s.queue(it, now)
}

// queue finds when the next step of an item is due, and queues it for that time.
func (s *schedule) queue(it *item, now time.Time) {
	steps, end := s.timers.times(it.phase)
	it.ends, it.lane, it.pos = false, ordinary, -1
	switch {
	case it.number < len(steps):
		it.due = it.start.Add(steps[it.number])
		switch {
		case it.phase == probing:
		case it.number == 0:
			it.lane = urgent
		case it.phase == ours:
			it.lane = repeated
		}
	case it.phase == ours:
		it.due = now.Add(s.between(s.timers.refresh(s.announced)))
	case it.number == len(steps) && end > 0:
		it.due, it.ends = it.start.Add(end), true
	default:
		return
	}
	heap.Push(&s.queues[it.lane], it)
}

func (s *schedule) unqueue(it *item) {
	if it.pos >= 0 {
		heap.Remove(&s.queues[it.lane], it.pos)
		it.pos = -1
	}
}

// next returns the time until the next task is due; false if there is none.
func (s *schedule) next(now time.Time) (wait time.Duration, any bool) {
	for _, q := range s.queues {
		if len(q) == 0 {
			continue
		}
		if until := q[0].due.Sub(now); !any || until < wait {
			wait, any = until, true
		}
	}
	return wait, any
}

// announcing reports whether addresses that just became ours are still being announced.
func (s *schedule) announcing() bool { return len(s.queues[urgent])+len(s.queues[repeated]) > 0 }

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
