package layer2

import (
	"container/heap"
	"net/netip"
	"time"
)

// job is the work for an address. It restarts with another status or phase.
type job struct {
	phase  phase
	status *status
}

// purpose is the purpose of an item of an address.
type purpose uint8

const (
	// steps are the steps of the job.
	steps purpose = iota
	// directDefence and defence answer another machine's claim: to the known machines, and to all neighbours.
	directDefence
	defence
	// duplicateCheck asks all neighbours which other machine has the address.
	duplicateCheck

	purposes
)

// itemKey names an item.
type itemKey struct {
	addr    netip.Addr
	purpose purpose
}

// item is a job with its next step, or a defence or a duplicate check beside it.
type item struct {
	itemKey
	job
	// step is the number of the step or defence, from 0.
	step int
	// notified is the number of machines that got this step by themselves, before all neighbours do.
	notified int
	// start is the time at which the job began, or the last defence.
	start time.Time
	// answeredAt is when a speaker answered a duplicate check, the first of those within duplicateCheckInterval.
	answeredAt time.Time
	// isProbed reports whether a probe found the address free.
	isProbed bool
	due      time.Time
	// lane and pos are its place in the queues, pos -1 for none.
	lane, pos int
}

// Lanes, in the order in which they are served: neighbours wait for first announcements, and Services for probes. The
// end of a phase sends nothing.
const (
	endLane = iota
	firstLane
	probeLane
	defendLane
	repeatLane
	refreshLane
	checkLane

	lanes
)

// itemHeap is a heap of items, ordered by due time.
type itemHeap []*item

var _ heap.Interface = (*itemHeap)(nil)

// Len implements sort.Interface.
func (q itemHeap) Len() int {
	return len(q)
}

// Less implements sort.Interface.
func (q itemHeap) Less(i, j int) bool {
	return q[i].due.Before(q[j].due)
}

// Swap implements sort.Interface.
func (q itemHeap) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].pos = i
	q[j].pos = j
}

// Push implements heap.Interface.
func (q *itemHeap) Push(x any) {
	it := x.(*item)
	it.pos = len(*q)
	*q = append(*q, it)
}

// Pop implements heap.Interface.
func (q *itemHeap) Pop() any {
	old := *q
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return it
}
