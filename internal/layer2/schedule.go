package layer2

import (
	"container/heap"
	"net/netip"
	"time"
)

// pair is an address on a link, by the link's index.
type pair struct {
	index int
	addr  netip.Addr
}

// item is when a pair is announced next.
type item struct {
	pair
	epoch uint64
	start time.Time
	// step counts announcements made.
	step int
	due  time.Time
	// pos is the place in the queue.
	pos int
}

// schedule knows which pair is to be announced when; it sends nothing.
type schedule struct {
	timers Timers
	items  map[pair]*item
	queue  queue
}

func newSchedule(timers Timers) *schedule {
	return &schedule{timers: timers, items: make(map[pair]*item)}
}

// set takes the whole desired set with the epoch of each pair. What is new, or
// has a new epoch, starts from the beginning; the rest goes on.
func (s *schedule) set(want map[pair]uint64, now time.Time) {
	for p, it := range s.items {
		if epoch, ok := want[p]; !ok || epoch != it.epoch {
			heap.Remove(&s.queue, it.pos)
			delete(s.items, p)
		}
	}
	for p, epoch := range want {
		if s.items[p] == nil {
			it := &item{pair: p, epoch: epoch, start: now}
			it.due = s.after(it, now)
			s.items[p] = it
			heap.Push(&s.queue, it)
		}
	}
}

// take returns at most n pairs that are due, and sets their next time.
func (s *schedule) take(now time.Time, n int) []pair {
	var due []pair
	for len(due) < n && len(s.queue) > 0 && !s.queue[0].due.After(now) {
		it := s.queue[0]
		due = append(due, it.pair)
		it.step++
		it.due = s.after(it, now)
		heap.Fix(&s.queue, 0)
	}
	return due
}

// after returns when an item with it.step announcements made is due.
func (s *schedule) after(it *item, now time.Time) time.Time {
	if it.step < len(s.timers.AnnounceTimes) {
		return it.start.Add(s.timers.AnnounceTimes[it.step])
	}
	return now.Add(s.timers.RefreshInterval)
}

// next returns how long until something is due; false if there is nothing.
func (s *schedule) next(now time.Time) (time.Duration, bool) {
	if len(s.queue) == 0 {
		return 0, false
	}
	return s.queue[0].due.Sub(now), true
}

// queue is a heap of items, the next due first.
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
