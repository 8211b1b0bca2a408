package bfd

import (
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// readWindow and mostReads bound what is read of each receiver: a flood must not keep a thread busy that has priority
	// over all others, nor hide what the other receivers have. Wanted sessions get 150 packets in such a time at most.
	readWindow = 50 * time.Millisecond
	mostReads  = 250
	// reportInterval is how often counters are reported, leastReport the least time between two changes of state.
	reportInterval = 5 * time.Second
	leastReport    = 10 * time.Millisecond
	// retryInterval is the time between attempts to open what could not be opened.
	retryInterval = time.Second
)

// thread drives the table with a real clock and real sockets. It calls nothing that waits for another thread, and does
// not log.
type thread struct {
	mailbox
	hangs func() bool
	table *table
	event int

	peers     *[]Peer
	receivers map[kind]*receiver
	// troubles are why a receiver cannot be opened.
	troubles map[kind]string
	senders  map[*session]*sender
	ports    map[int]bool

	since time.Duration
	// retry: something could not be opened or used, or may change.
	retry     bool
	retryAt   time.Duration
	reportAt  time.Duration
	reported  uint64
	refreshAt time.Duration

	send func(*session, *packet)
	out  [packetLen]byte
	poll []unix.PollFd
	junk [8]byte
}

func newThread(hangs func() bool) (*thread, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open eventfd: %w", err)
	}
	t := &thread{
		mailbox: mailbox{notices: make(chan notice, 1)}, hangs: hangs, table: newTable(random), event: event,
		receivers: map[kind]*receiver{}, troubles: map[kind]string{}, senders: map[*session]*sender{}, ports: map[int]bool{},
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
		t.wait(t.due()-boottime(), true)
	}
}

// step takes orders, reads what came, does what is due and reports.
func (t *thread) step() {
	now := boottime()
	t.load(now)
	t.receive()
	now = boottime()
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
			t.table.leave(now)
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
	t.retry = false
	sources := map[kind][]netip.Addr{}
	for _, s := range t.table.sessions {
		if !s.leaving {
			sources[kindOf(s.peer)] = append(sources[kindOf(s.peer)], s.peer.Address)
		}
	}
	for k, r := range t.receivers {
		if sources[k] == nil {
			_ = unix.Close(r.fd)
			delete(t.receivers, k)
		}
	}
	for k, from := range sources {
		t.troubles[k] = ""
		if err := t.listen(k, from); err != nil {
			t.troubles[k] = err.Error()
			t.retry = true
		}
	}
	for _, s := range t.table.sessions {
		if s.leaving {
			continue
		}
		// A new socket after a failure shows nothing yet: see transmit.
		err := t.openSender(s)
		unproven := err == nil && t.senders[s].failing
		if !unproven {
			t.trouble(s, err)
		}
		t.retry = t.retry || unproven || err != nil || s.peer.Interface != ""
	}
}

// listen opens the receiver of a kind unless it is open, and lets pass what the sources send.
func (t *thread) listen(k kind, sources []netip.Addr) error {
	r := t.receivers[k]
	if r == nil {
		var err error
		if r, err = openReceiver(k); err != nil {
			return err
		}
		t.receivers[k] = r
	}
	return attach(r.fd, filter(k.is6, k.multiHop, sources))
}

// openSender opens the socket of a session unless it is open and works.
func (t *thread) openSender(s *session) error {
	before := t.senders[s]
	if before != nil {
		if !before.failing && before.onLink(s.peer.Interface) {
			return nil
		}
		t.closeSender(s)
	}
	o, err := openSender(s.peer, t.ports, random())
	if err != nil {
		return err
	}
	o.failing = before != nil && before.failing
	t.senders[s], t.ports[o.port], s.link = o, true, o.link
	return nil
}

// trouble notes why the session cannot work, or that it can.
func (t *thread) trouble(s *session, err error) {
	text := t.troubles[kindOf(s.peer)]
	if err != nil {
		text = err.Error()
	}
	if text != s.trouble {
		s.trouble = text
		t.table.version++
	}
}

func (t *thread) closeSender(s *session) {
	if o := t.senders[s]; o != nil {
		o.close()
		delete(t.ports, o.port)
		delete(t.senders, s)
		if s.peer.Interface != "" {
			s.link = noLink
		}
	}
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

// receive reads until nothing waits or the window's share is spent.
func (t *thread) receive() {
	now := boottime()
	again := now >= t.since+readWindow
	if again {
		t.since = now
	}
	for _, r := range t.receivers {
		if again {
			r.reads = 0
		}
		for r.reads < mostReads {
			b, from, ok := r.read()
			if !ok {
				break
			}
			r.reads++
			if b != nil {
				t.table.receive(boottime(), from, b)
			}
		}
	}
}

// transmit sends a packet of a session.
func (t *thread) transmit(s *session, p *packet) {
	o := t.senders[s]
	if o == nil {
		return
	}
	p.marshal(&t.out)
	err := o.send(t.out[:])
	if o.failing = err != nil; o.failing || s.trouble != "" {
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
	t.notices <- notice{t.table.statuses(now), t.table.unknown} // nobody else sends
}

// due is when step has something to do next.
func (t *thread) due() time.Duration {
	now := boottime()
	next, is := t.table.due(now)
	earlier := func(at time.Duration) {
		if !is || at < next {
			next, is = at, true
		}
	}
	if t.retry && !t.stopping.Load() {
		earlier(t.retryAt)
	}
	if earlier(t.refreshAt); t.table.version != t.reported {
		earlier(t.reportAt)
	}
	for _, r := range t.receivers {
		if r.reads >= mostReads {
			earlier(t.since + readWindow)
		}
	}
	return next
}

// wake ends a wait.
func (t *thread) wake() {
	one := [8]byte{7: 1}
	_, _ = unix.Write(t.event, one[:]) // fails only if it is full of wake-ups
}

// wait returns when there is something to read or to do, or after a time; where reading is false, only for the latter
// two. Any error is a reason to look, too.
func (t *thread) wait(d time.Duration, reading bool) {
	t.poll = append(t.poll[:0], unix.PollFd{Fd: int32(t.event), Events: unix.POLLIN})
	for _, r := range t.receivers {
		if reading && r.reads < mostReads {
			t.poll = append(t.poll, unix.PollFd{Fd: int32(r.fd), Events: unix.POLLIN})
		}
	}
	timeout := unix.NsecToTimespec(max(d, 0).Nanoseconds())
	if n, err := unix.Ppoll(t.poll, &timeout, nil); err == nil && n > 0 && t.poll[0].Revents != 0 {
		_, _ = unix.Read(t.event, t.junk[:])
	}
}

func (t *thread) close() {
	for s := range t.senders {
		t.closeSender(s)
	}
	for _, r := range t.receivers {
		_ = unix.Close(r.fd)
	}
}
