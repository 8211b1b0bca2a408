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

// maxThreads is how many run Go code at once: all have real-time priority. One is the heartbeats', one the Guest's.
const maxThreads = 3

// Serve is the heartbeat process of Config.Command: it takes part for the speaker that started it. When that speaker
// orders it to leave, it says goodbye and returns nil. It returns an error when it cannot listen, or was not started by
// a speaker, and without a goodbye when the speaker is gone. Heartbeats stop as soon as the caller exits, which should
// be at once: then the kernel refuses packets, as for any speaker that was killed.
func Serve(run Guest) error {
	conn, err := child.Parent()
	if err != nil {
		return err
	}
	s, err := mapShared(os.NewFile(memoryFile, "shared memory"))
	if err != nil {
		return err
	}
	in := json.NewDecoder(conn)
	// Each is one write, which no other one interrupts. It fails only when the speaker is gone, which readOrders
	// notices.
	send := func(n notice) { _ = json.NewEncoder(conn).Encode(n) }
	var first order
	if err := in.Decode(&first); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	runtime.GOMAXPROCS(maxThreads)
	collectRarely()
	c := *first.Settings
	var b *budget
	if !c.Ordinary {
		b = newBudget(s, c.Cooldown)
		b.watch(func(o overrun) { send(notice{Overrun: &o}) })
		if c.Cooldown == 0 {
			b.begin() // the thread publishes whether that worked
		}
	}
	t, err := newThread(c, s, b)
	if err != nil {
		send(notice{Error: err.Error()})
		return err
	}
	t.obey(first)
	leaveGuest, err := startGuest(run, s.speakerHangs)
	if err != nil {
		return err
	}
	gone, ended := make(chan error, 1), make(chan struct{})
	go func() { gone <- t.readOrders(in) }()
	go func() {
		defer close(ended)
		t.run()
	}()
	for {
		select {
		case v := <-t.views:
			send(notice{View: v})
		case q := <-t.asks:
			send(notice{Ask: &q})
		case err := <-gone:
			return fmt.Errorf("the speaker is gone: %w", err)
		case <-ended:
			leaveGuest()
			return nil
		}
	}
}

// readOrders obeys orders until the speaker is gone.
func (t *thread) readOrders(in *json.Decoder) error {
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			return err
		}
		t.obey(o)
	}
}

// obey hands an order to the thread.
func (t *thread) obey(o order) {
	t.orders <- o
	t.socket.wake()
}

// Guest is another part of the speaker that may not be late, and shares the heartbeat process, its priority and its
// budget. Its connection leads to Config.Guest. When the deadline of a read passes it says goodbye and returns. While
// hangs returns true, the speaker's process does not serve. A Guest allocates next to nothing while nothing changes,
// and does what waits on goroutines of its own.
type Guest func(conn net.Conn, hangs func() bool)

// guestTime is how long a guest has to say goodbye.
const guestTime = 200 * time.Millisecond

// startGuest runs a guest; leave has it say goodbye, and returns when it did or does not.
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
