package heartbeat

import (
	"net"
	"time"

	"github.com/holdfast-lb/holdfast/internal/child"
)

// Guest is another part of the speaker that may not be late, and shares the heartbeat process, its priority and its
// budget. Its connection leads to Config.Guest. When the deadline of a read passes it says goodbye and returns. While hangs
// returns true, the speaker's process does not serve. A Guest allocates next to nothing while nothing changes, and does what
// waits on goroutines of its own.
type Guest func(conn net.Conn, hangs func() bool)

// guestTime is how long a guest has to say goodbye.
const guestTime = 200 * time.Millisecond

// startGuest runs a guest; leave has it say goodbye, and returns when it did or does not.
func startGuest(run Guest, hangs func() bool) (leave func(), err error) {
	if run == nil {
		return func() {}, nil
	}
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
