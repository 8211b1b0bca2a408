package heartbeat

import (
	"encoding/json"
	"time"
)

// Guest is another part of the speaker that may not be late, and shares the heartbeat process, its priority and its
// budget. It obeys orders until they are closed, then says goodbye and returns. While hangs returns true, the speaker's
// process does not serve. Of orders that it did not take only the last is kept: each has the whole desired state.
// A Guest allocates next to nothing while nothing changes, and does what waits on goroutines of its own.
type Guest func(orders <-chan json.RawMessage, notify func(json.RawMessage), hangs func() bool)

// guestTime is how long a guest has to say goodbye.
const guestTime = 200 * time.Millisecond

// guest is the running Guest; nil if there is none.
type guest struct {
	orders chan json.RawMessage
	left   bool
	ended  chan struct{}
}

func startGuest(run Guest, out *noticeWriter, hangs func() bool) *guest {
	if run == nil {
		return nil
	}
	g := &guest{orders: make(chan json.RawMessage, 1), ended: make(chan struct{})}
	go func() {
		defer close(g.ended)
		run(g.orders, func(n json.RawMessage) { out.write(notice{Guest: n}) }, hangs)
	}()
	return g
}

// order hands on an order and never waits. Only one goroutine calls order and leave.
func (g *guest) order(o json.RawMessage) {
	if g == nil || o == nil || g.left {
		return
	}
	select {
	case <-g.orders:
	default:
	}
	g.orders <- o
}

func (g *guest) leave() {
	if g != nil && !g.left {
		g.left = true
		close(g.orders)
	}
}

// wait returns when the guest has said goodbye, or does not.
func (g *guest) wait() {
	if g == nil {
		return
	}
	select {
	case <-g.ended:
	case <-time.After(guestTime):
	}
}

// OrderGuest hands the guest its whole desired state, also if the heartbeat process is started again.
func (h *Heartbeat) OrderGuest(o json.RawMessage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.guestOrder = o
	h.pass(order{Guest: o})
}

// noticeGuest hands on what the guest reports.
func (h *Heartbeat) noticeGuest(n json.RawMessage) {
	if h.config.Guest != nil {
		h.config.Guest(n)
	}
}
