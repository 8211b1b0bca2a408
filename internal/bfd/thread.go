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
	// readWindow is the time in which a session reads at most its allowance.
	readWindow = 50 * time.Millisecond
	// reportInterval is the time between two reports of counters.
	reportInterval = 5 * time.Second
	// minReportInterval is the shortest time between two reports.
	minReportInterval = 10 * time.Millisecond
	// retryInterval is the pause before a socket is opened again that could not be opened.
	retryInterval = time.Second
)

// thread drives the table with a real clock and real sockets. It never blocks on another thread, and does not log.
//
// It has many fields, because a turn of its loop must not allocate: what a turn uses is kept. The sockets and the
// reports have types of their own.
type thread struct {
	// wanted, stopping and notices are shared with other goroutines.
	wanted   atomic.Pointer[[]Peer]
	stopping atomic.Bool
	notices  chan []Status

	hangs func() bool
	table *table
	event *rt.Event
	// peers is the last value of wanted that the table has.
	peers *[]Peer
	sockets
	reports

	// windowStart is the start of the read window.
	windowStart time.Duration
	// throttled reports whether a session has used its allowance in this window.
	throttled bool

	// send is the method transmit: a method value would be allocated in each tick.
	send func(*session, *packet)
	out  [packetLen]byte
	in   [packetLen]byte
	poll []unix.PollFd
	// polled are the slots of poll, whose first entry is the event.
	polled []*slot
}

// sockets are the open sockets of all sessions.
type sockets struct {
	listeners map[kind]*listener
	// troubles are the errors of listeners.
	troubles map[kind]error
	senders  map[*session]*sender
	// ports are the source ports in use.
	ports map[int]bool
	// retry reports whether a socket could not be opened or used, and retryAt is the time of the next attempt.
	retry   bool
	retryAt time.Duration
}

// reports schedules the reports to the Monitor.
type reports struct {
	// reported is the last reported version of the table.
	reported uint64
	// reportAt is the earliest time of the next report, and refreshAt the time of the next report without a change.
	reportAt, refreshAt time.Duration
}

// newThread returns a thread that does nothing before run.
func newThread(hangs func() bool) (*thread, error) {
	event, err := rt.NewEvent()
	if err != nil {
		return nil, err
	}

	t := &thread{
		notices: make(chan []Status, 1),
		hangs:   hangs,
		table:   newTable(rt.Random),
		event:   event,
		sockets: sockets{
			listeners: map[kind]*listener{},
			troubles:  map[kind]error{},
			senders:   map[*session]*sender{},
			ports:     map[int]bool{},
		},
	}

	t.send = t.transmit
	return t, nil
}

// run runs until the thread is stopping and all sessions have left.
func (t *thread) run() {
	runtime.LockOSThread() // the thread ends with the goroutine
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

// step applies orders, reads packets, sends what is due and reports.
func (t *thread) step() {
	at := rt.Boottime()
	t.load(at)
	t.receive()
	at = rt.Boottime()
	t.table.tick(at, t.send)
	t.closeEnded()
	t.report(at)
}

// load applies the desired peers, and retries the sockets that could not be opened.
func (t *thread) load(at time.Duration) {
	switch wanted := t.wanted.Load(); {
	case t.stopping.Load():
		if t.peers != nil {
			t.peers = nil
			t.table.set(at, nil)
		}
		return
	case wanted != t.peers:
		t.peers = wanted
		t.table.set(at, *wanted)
	case !t.retry || at < t.retryAt:
		return
	}

	t.retryAt = at + retryInterval
	t.open()
}

// open opens the sockets of every session, as far as possible, and closes listeners without sessions.
func (t *thread) open() {
	t.retry = false
	t.polled = t.polled[:0]
	sessions := map[kind][]*session{}
	for _, s := range t.table.sessions {
		if !s.leaving {
			k := kindOf(s.peer)
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

		// A new socket after a failure may fail as well: transmit decides.
		err := t.openSender(s)
		unproven := err == nil && t.senders[s] != nil && t.senders[s].failing
		if !unproven {
			t.setTrouble(s, err)
		}

		t.retry = t.retry || unproven || err != nil
	}
}

// listen opens the listener of a kind unless it is open, and gives the sessions their sockets.
func (t *thread) listen(k kind, sessions []*session) (err error) {
	l := t.listeners[k]
	if l == nil {
		l, err = listen(k)
		if err != nil {
			return err
		}

		t.listeners[k] = l
	}

	return l.serve(sessions)
}

// openSender opens the socket of a session unless it is open and works. The socket of a session with an interface is
// replaced when the link is: another link may get its name.
func (t *thread) openSender(s *session) error {
	before := t.senders[s]
	if before != nil {
		isSameLink := before.link == 0 || slices.Equal(s.peer.Links, []int{before.link})
		if isSameLink && !before.failing {
			return nil
		}

		t.closeSender(s)
	}

	if s.peer.Interface != "" && len(s.peer.Links) == 0 {
		return nil // setTrouble reports it
	}

	o, err := openSender(s.peer, t.ports, rt.Random())
	if err != nil {
		return err
	}

	o.failing = before != nil && before.failing
	t.senders[s], t.ports[o.port] = o, true
	return nil
}

// setTrouble sets the reason why the session cannot send or receive, given the error of its sender; no trouble if it
// can.
func (t *thread) setTrouble(s *session, err error) {
	err = cmp.Or(err, t.troubles[kindOf(s.peer)])
	var after trouble
	switch {
	case len(s.peer.Links) == 0 && s.peer.Interface != "":
		after.text = "there is no interface " + s.peer.Interface
	case len(s.peer.Links) == 0:
		after.text = fmt.Sprintf("%s is on no link of the node", s.peer.Address)
	case err != nil:
		after = trouble{refused: true, text: err.Error()}
	}

	if after != s.trouble {
		s.trouble = after
		t.table.version++
	}
}

// closeSender closes the socket of a session, and frees its port.
// close closes all sockets.
func (t *thread) closeSender(s *session) {
	o := t.senders[s]
	o.close()
	delete(t.ports, o.port)
	delete(t.senders, s)
}

// closeEnded closes the sockets of sessions that have ended.
// close closes all sockets.
func (t *thread) closeEnded() {
	if len(t.senders) <= len(t.table.sessions) {
		return
	}

	for s := range t.senders {
		if s.hasEnded() {
			t.closeSender(s)
		}
	}
}

// receive reads the sockets that wait has found readable, within the sessions' allowances.
func (t *thread) receive() {
	at := rt.Boottime()
	if at >= t.windowStart+readWindow {
		t.windowStart = at
		t.throttled = false
		for _, l := range t.listeners {
			for _, s := range l.slots {
				s.reads = 0
			}
		}
	}

	for i, s := range t.polled {
		for t.poll[i+1].Revents != 0 {
			if s.reads >= s.session.allowance() {
				t.throttled = true
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
	o.failing = err != nil
	if err != nil {
		err = fmt.Errorf("send: %w", err)
		t.retry = true
	}
	if o.failing || s.trouble.refused {
		t.setTrouble(s, err)
	}
}

// report reports changes at once, and counters every reportInterval. It replaces a report that was not read yet.
func (t *thread) report(at time.Duration) {
	changed := t.table.version != t.reported
	if !changed && at < t.refreshAt || at < t.reportAt {
		return
	}

	t.reported = t.table.version
	t.reportAt = at + minReportInterval
	t.refreshAt = at + reportInterval
	select {
	case <-t.notices:
	default:
	}

	t.notices <- t.table.statuses(at) // does not block: there is no other sender
}

// due returns the time at which step must run next.
func (t *thread) due() time.Duration {
	next := min(t.table.due(rt.Boottime()), t.refreshAt)
	if t.retry && !t.stopping.Load() {
		next = min(next, t.retryAt)
	}

	if t.table.version != t.reported {
		next = min(next, t.reportAt)
	}

	if t.throttled {
		next = min(next, t.windowStart+readWindow)
	}

	return next
}

// wait returns after a time, when the event wakes it or, with reading, when a packet can be read.
func (t *thread) wait(d time.Duration, reading bool) {
	t.poll = append(t.poll[:0], unix.PollFd{})
	t.polled = t.polled[:0]
	for _, l := range t.listeners {
		for _, s := range l.slots {
			if reading && s.session != nil && s.reads < s.session.allowance() {
				t.poll = append(t.poll, unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN})
				t.polled = append(t.polled, s)
			}
		}
	}

	t.event.Wait(d, t.poll)
}

// close closes all sockets.
func (t *thread) close() {
	for s := range t.senders {
		t.closeSender(s)
	}
	for _, l := range t.listeners {
		l.close()
	}
}
