package bfd

import (
	"encoding/json"
	"errors"
	"net"
	"os"
)

// Serve holds the sessions that a Monitor orders by a connection, until the deadline of a read passes. Then the neighbors are
// told that the sessions are switched off. If the Monitor is gone, they are not: the process is to end at once. While hangs returns
// true, the speaker does not serve and no packet is sent.
func Serve(conn net.Conn, hangs func() bool) {
	defer conn.Close()
	t, err := newThread(hangs)
	if err != nil {
		return // there is nothing that could be reported of sessions
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.run()
	}()
	go t.obey(conn)
	for out := json.NewEncoder(conn); ; {
		select {
		case statuses := <-t.notices:
			_ = out.Encode(statuses) // fails only if the Monitor is gone
		case <-ended:
			return
		}
	}
}

// obey takes orders, each of which is all that is wanted.
func (t *thread) obey(conn net.Conn) {
	for in := json.NewDecoder(conn); ; t.event.Wake() {
		var peers []Peer
		err := in.Decode(&peers)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			t.stopping.Store(true)
			t.event.Wake()
			return
		case err != nil:
			return
		}
		t.wanted.Store(&peers)
	}
}
