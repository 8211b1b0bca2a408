package bfd

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/rt"
)

const (
	// readWindow is a time in which a session is read no more than its allowance.
	readWindow = 50 * time.Millisecond
	// reportInterval is how often counters are reported, leastReport the least time between two changes of state.
	reportInterval = 5 * time.Second
	leastReport    = 10 * time.Millisecond
	// retryInterval is the time between attempts to open what could not be opened.
	retryInterval = time.Second
)

// thread drives the table with a real clock and real sockets. It calls nothing that waits for another thread, and does
// not log.
type thread struct {
	// wanted, stopping and notices are what the thread shares with other goroutines: neither waits.
	wanted   atomic.Pointer[[]Peer]
	stopping atomic.Bool
	notices  chan []Status

	hangs func() bool
	table *table
	event *rt.Event

	peers     *[]Peer
	listeners map[kind]*listener
	// troubles are why a listener does not work.
	troubles map[kind]error
	senders  map[*session]*sender
	ports    map[int]bool

	since time.Duration
	// spent: a session has used its allowance of this window.
	spent bool
	// retry: something could not be opened or used.
	retry     bool
	retryAt   time.Duration
	reportAt  time.Duration
	reported  uint64
	refreshAt time.Duration

	send func(*session, *packet)
	out  [packetLen]byte
	in   [packetLen]byte
	poll []unix.PollFd
	// polled are the slots of poll, which begins with the event.
	polled []*slot
}

func newThread(hangs func() bool) (*thread, error) {
	event, err := rt.NewEvent()
	if err != nil {
		return nil, err
	}

	t := &thread{
		notices:   make(chan []Status, 1),
		hangs:     hangs,
		table:     newTable(rt.Random),
		event:     event,
		listeners: map[kind]*listener{},
		troubles:  map[kind]error{},
		senders:   map[*session]*sender{},
		ports:     map[int]bool{},
	}

	t.send = t.transmit
	return t, nil
}

func (t *thread) run() {
	runtime.LockOSThread() // never unlocked: it ends with the thread
	defer t.close()
	for {
		if t.hangs() && !t.stopping.Load() {
			t.wait(readWindow, false)
			continue
		}

		t.step()
		if t.stopping.Load() && len(t.table.sessions) == 0 {
			return
		}

		t.wait(t.due()-rt.Boottime(), true)
	}
}

// step takes orders, reads what came, does what is due and reports.
func (t *thread) step() {
	now := rt.Boottime()
	t.load(now)
	t.receive()
	now = rt.Boottime()
	t.table.tick(now, t.send)
	t.sweep()
	t.report(now)
}

// load takes over the wanted peers, and retries what could not be opened.
func (t *thread) load(now time.Duration) {
	switch wanted := t.wanted.Load(); {
	case t.stopping.Load():
		if t.peers != nil {
			t.peers = nil
			t.table.set(now, nil)
		}
		return
	case wanted != t.peers:
		t.peers = wanted
		t.table.set(now, *wanted)
	case !t.retry || now < t.retryAt:
		return
	}

	t.retryAt = now + retryInterval
	t.open()
}

// open has every session send and receive, as far as that is possible.
func (t *thread) open() {
	t.retry, t.polled = false, t.polled[:0]
	sessions := map[kind][]*session{}
	for _, s := range t.table.sessions {
		if k := kindOf(s.peer); !s.leaving {
			sessions[k] = append(sessions[k], s)
		}
	}

	for k, l := range t.listeners {
		if sessions[k] == nil {
			l.close()
			delete(t.listeners, k)
		}
	}

	for k, all := range sessions {
		t.troubles[k] = t.listen(k, all)
		t.retry = t.retry || t.troubles[k] != nil
	}

	for _, s := range t.table.sessions {
		if s.leaving {
			continue
		}

		// A new socket after a failure shows nothing yet: see transmit.
		err := t.openSender(s)
		unproven := err == nil && t.senders[s] != nil && t.senders[s].failing
		if !unproven {
			t.trouble(s, err)
		}

		t.retry = t.retry || unproven || err != nil
	}
}

// listen opens the listener of a kind unless it is open, and has it serve the sessions.
func (t *thread) listen(k kind, sessions []*session) (err error) {
	l := t.listeners[k]
	if l == nil {
		if l, err = listen(k); err != nil {
			return err
		}

		t.listeners[k] = l
	}

	return l.serve(sessions)
}

// openSender opens the socket of a session unless it is open and works. A session with an interface has one while there
// is that link: another one may take its name.
func (t *thread) openSender(s *session) error {
	before := t.senders[s]
	if before != nil {
		if !before.failing && (before.link == 0 || slices.Equal(s.peer.Links, []int{before.link})) {
			return nil
		}

		t.closeSender(s)
	}

	if s.peer.Interface != "" && len(s.peer.Links) == 0 {
		return nil // see trouble
	}

	o, err := openSender(s.peer, t.ports, rt.Random())
	if err != nil {
		return err
	}

	o.failing = before != nil && before.failing
	t.senders[s], t.ports[o.port] = o, true
	return nil
}

// trouble notes why the session cannot work, or that it can.
func (t *thread) trouble(s *session, err error) {
	var now trouble
	switch err = cmp.Or(err, t.troubles[kindOf(s.peer)]); {
	case len(s.peer.Links) == 0 && s.peer.Interface != "":
		now = trouble{text: "there is no interface " + s.peer.Interface}
	case len(s.peer.Links) == 0:
		now = trouble{text: fmt.Sprintf("%s is on no link of the node", s.peer.Address)}
	case err != nil:
		now = trouble{true, err.Error()}
	}

	if now != s.trouble {
		s.trouble = now
		t.table.version++
	}
}

func (t *thread) closeSender(s *session) {
	o := t.senders[s]
	o.close()
	delete(t.ports, o.port)
	delete(t.senders, s)
}

// sweep closes the sockets of sessions that ended.
func (t *thread) sweep() {
	if len(t.senders) <= len(t.table.sessions) {
		return
	}

	for s := range t.senders {
		if s.ended() {
			t.closeSender(s)
		}
	}
}

// receive reads what wait found, as far as the sessions' allowances reach.
func (t *thread) receive() {
	if now := rt.Boottime(); now >= t.since+readWindow {
		t.since, t.spent = now, false
		for _, l := range t.listeners {
			for _, s := range l.slots {
				s.reads = 0
			}
		}
	}

	for i, s := range t.polled {
		for t.poll[i+1].Revents != 0 {
			if s.reads >= s.session.allowance() {
				t.spent = true
				break
			}

			n, ok := s.read(t.in[:])
			if !ok {
				break
			}

			s.reads++
			t.table.receive(rt.Boottime(), s.session, t.in[:n])
		}
	}

	t.polled = t.polled[:0]
}

// transmit sends a packet of a session.
func (t *thread) transmit(s *session, p *packet) {
	o := t.senders[s]
	if o == nil {
		return
	}

	p.marshal(&t.out)
	err := rt.Send(o.fd, t.out[:], o.to)
	if o.failing = err != nil; o.failing || s.trouble.refused {
		if err != nil {
			err = fmt.Errorf("send: %w", err)
			t.retry = true
		}

		t.trouble(s, err)
	}
}

// report reports changes at once, and counters now and then. The last report counts: one that nobody took is replaced.
func (t *thread) report(now time.Duration) {
	changed := t.table.version != t.reported
	if !changed && now < t.refreshAt || now < t.reportAt {
		return
	}

	t.reported, t.reportAt, t.refreshAt = t.table.version, now+leastReport, now+reportInterval
	select {
	case <-t.notices:
	default:
	}

	t.notices <- t.table.statuses(now) // nobody else sends
}

// due is when step has something to do next.
func (t *thread) due() time.Duration {
	next := min(t.table.due(rt.Boottime()), t.refreshAt)
	if t.retry && !t.stopping.Load() {
		next = min(next, t.retryAt)
	}

	if t.table.version != t.reported {
		next = min(next, t.reportAt)
	}

	if t.spent {
		next = min(next, t.since+readWindow)
	}

	return next
}

// wait returns when there is something to read or to do, or after a time; where reading is false, only for the latter
// two.
func (t *thread) wait(d time.Duration, reading bool) {
	t.poll, t.polled = append(t.poll[:0], unix.PollFd{}), t.polled[:0]
	for _, l := range t.listeners {
		for _, s := range l.slots {
			if reading && s.session != nil && s.reads < s.session.allowance() {
				t.poll, t.polled = append(
					t.poll,
					unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN},
				), append(
					t.polled,
					s,
				)
			}
		}
	}

	t.event.Wait(d, t.poll)
}

func (t *thread) close() {
	for s := range t.senders {
		t.closeSender(s)
	}
	for _, l := range t.listeners {
		l.close()
	}
}
