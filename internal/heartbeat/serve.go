package heartbeat

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/holdfast-lb/holdfast/internal/child"
)

// maxThreads is how many threads run Go code at once: all have real-time priority. One runs the heartbeats, one the
// Guest.
const maxThreads = 3

// Serve is the heartbeat process of Config.Command: it takes part for the speaker that started it. When the speaker
// orders it to leave, it says goodbye and returns nil. It returns an error when it cannot listen, when no speaker
// started it, and without a goodbye when the speaker is gone. The caller should exit at once. Then heartbeats stop,
// and the kernel refuses packets, as for any speaker that was killed.
func Serve(run Guest) error {
	conn, err := child.Parent()
	if err != nil {
		return err
	}
	s, err := mapSharedState(os.NewFile(memoryFile, "shared memory"))
	if err != nil {
		return err
	}
	in := json.NewDecoder(conn)
	// Each notice is one write, which no other interrupts. It fails only when the speaker is gone, which readOrders
	// notices.
	send := func(n childNotice) { _ = json.NewEncoder(conn).Encode(n) }
	var first order
	if err := in.Decode(&first); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}

	runtime.GOMAXPROCS(maxThreads)
	collectGarbageRarely()
	settings := *first.Settings
	cpu := startBudget(settings, s, send)
	t, err := newBeatThread(settings, s, cpu)
	if err != nil {
		send(childNotice{Error: err.Error()})
		return err
	}
	opener := newLinkOpener(t)
	opener.enqueue(first)
	leaveGuest, err := startGuest(run, s.isSpeakerHanging)
	if err != nil {
		return err
	}

	gone, ended := make(chan error, 1), make(chan struct{})
	go func() { gone <- opener.readOrders(in) }()
	go func() {
		defer close(ended)
		t.run()
	}()
	for {
		select {
		case v := <-t.views:
			send(childNotice{View: v})
		case q := <-t.questions:
			send(childNotice{Ask: &q})
		case err := <-gone:
			return fmt.Errorf("the speaker is gone: %w", err)
		case <-ended:
			leaveGuest()
			return nil
		}
	}
}

// startBudget gives the process real-time priority within a budget. It returns nil if the process is to be ordinary.
func startBudget(c processSettings, s *sharedState, send func(childNotice)) *cpuBudget {
	if c.Ordinary {
		return nil
	}

	b := newCPUBudget(s, c.Cooldown)
	b.watch(func(o overrun) { send(childNotice{Overrun: &o}) })
	if c.Cooldown == 0 {
		b.begin() // the thread publishes whether that worked
	}

	return b
}

// linkOpener passes orders to the thread. It opens the links of an order on a goroutine of its own: other orders do not
// wait for that.
type linkOpener struct {
	*beatThread
	// latest has the links that were ordered last.
	latest chan []Link
}

func newLinkOpener(t *beatThread) *linkOpener {
	l := &linkOpener{
		beatThread: t,
		latest:     make(chan []Link, 1),
	}
	go func() {
		for links := range l.latest {
			t.enqueue(order{Links: links})
		}
	}()

	return l
}

// readOrders passes orders on until the speaker is gone.
func (l *linkOpener) readOrders(in *json.Decoder) error {
	defer close(l.latest)
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			return err
		}
		l.enqueue(o)
	}
}

// enqueue hands an order to the thread, without its links, which follow.
func (l *linkOpener) enqueue(o order) {
	links := o.Links
	o.Links = nil
	l.beatThread.enqueue(o)
	if links == nil {
		return
	}

	select {
	case <-l.latest: // the opener has not begun with these
	default:
	}
	l.latest <- links // no other goroutine sends
}

// enqueue hands an order to the thread.
func (t *beatThread) enqueue(o order) {
	if o.Links != nil {
		o.opened = t.openLinks(o.Links)
	}
	t.orders <- o
	t.sockets.wake()
}

// Guest is another part of the speaker that may not be late, and shares the heartbeat process, its priority and its
// budget. Its connection leads to Config.Guest. When the deadline of a read passes, it says goodbye and returns.
// While hangs returns true, the speaker's process does not serve. A Guest allocates next to nothing while nothing
// changes, and does anything that waits on goroutines of its own.
type Guest func(conn net.Conn, hangs func() bool)

// guestTime is how long a guest has to say goodbye.
const guestTime = 200 * time.Millisecond

// startGuest runs a guest. The returned function has the guest say goodbye, and returns when it did, or after
// guestTime.
func startGuest(run Guest, hangs func() bool) (leave func(), err error) {
	conn, err := child.Inherited(guestFile)
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(conn, hangs)
	}()

	return func() {
		_ = conn.SetReadDeadline(time.Time{}.Add(1)) // long past; fails only if the guest has closed it
		select {
		case <-ended:
		case <-time.After(guestTime):
		}
	}, nil
}
