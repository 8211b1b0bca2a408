package bfd

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// order is the whole desired state, as it is handed to the process of the sessions.
type order struct{ Peers []Peer }

// notice is what that process reports: all sessions.
type notice struct{ Sessions []Status }

// Serve holds the sessions of the last order, until orders is closed. Then the neighbors are told that the sessions are
// switched off. While hangs returns true, the speaker does not serve and no packet is sent. Serve never waits for
// notify longer than for one call.
func Serve(orders <-chan json.RawMessage, notify func(json.RawMessage), hangs func() bool) {
	t, err := newThread(hangs)
	if err != nil {
		report(notify, notice{}) // there is nothing that could be told of sessions
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.run()
	}()
	for {
		select {
		case raw, more := <-orders:
			var o order
			switch {
			case !more:
				t.stopping.Store(true)
				orders = nil
			case json.Unmarshal(raw, &o) != nil:
				panic("an order of our own cannot be read: " + string(raw))
			default:
				t.wanted.Store(&o.Peers)
			}
			t.wake()
		case n := <-t.notices:
			report(notify, n)
		case <-ended:
			return
		}
	}
}

func report(notify func(json.RawMessage), n notice) {
	raw, err := json.Marshal(n)
	if err != nil {
		panic(fmt.Sprintf("encode a notice: %v", err)) // it has plain values only
	}
	notify(raw)
}

// boottime is the time since boot, suspension included; setting the wall clock does not change it.
func boottime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(fmt.Sprintf("no boot time: %v", err)) // since Linux 2.6.39
	}
	return time.Duration(t.Nano())
}

// random returns an unguessable number.
func random() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails: crypto/rand
	return binary.NativeEndian.Uint64(b[:])
}

// mailbox is what the thread takes from other goroutines: neither waits.
type mailbox struct {
	wanted   atomic.Pointer[[]Peer]
	stopping atomic.Bool
	notices  chan notice
}
