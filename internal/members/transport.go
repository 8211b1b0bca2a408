package members

import (
	"io"
	"log"
	"net"

	"github.com/hashicorp/memberlist"
)

// maxStreamLen bounds the octets that are read before they are known to be a member's: memberlist reads a message of up
// to 20 MiB to its end before it tries the keys. A member describes itself in less than 1 KiB, so this is enough for
// some thousand members.
const maxStreamLen = 4 << 20

// transport is memberlist's with bounds on incoming streams.
type transport struct {
	*memberlist.NetTransport
	admit   func(net.Conn) (net.Conn, bool)
	streams chan net.Conn
	stopped chan struct{}
}

func newTransport(
	address string,
	port int,
	logger *log.Logger,
	admit func(net.Conn) (net.Conn, bool),
) (*transport, error) {
	c := &memberlist.NetTransportConfig{BindAddrs: []string{address}, BindPort: port, Logger: logger}
	inner, err := memberlist.NewNetTransport(c)
	if err != nil {
		return nil, err
	}

	t := &transport{
		NetTransport: inner,
		admit:        admit,
		streams:      make(chan net.Conn),
		stopped:      make(chan struct{}),
	}
	go t.admitStreams()

	return t, nil
}

// admitStreams passes admitted streams on until Shutdown.
func (t *transport) admitStreams() {
	for {
		select {
		case c := <-t.NetTransport.StreamCh():
			if c, ok := t.admit(c); ok {
				t.streams <- boundedStream{c, io.LimitReader(c, maxStreamLen)}
			}
		case <-t.stopped:
			return
		}
	}
}

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown implements memberlist.Transport. memberlist takes streams until it has returned.
func (t *transport) Shutdown() error {
	defer close(t.stopped)
	return t.NetTransport.Shutdown()
}

// boundedStream ends after maxStreamLen octets.
type boundedStream struct {
	net.Conn
	bounded io.Reader
}

func (s boundedStream) Read(b []byte) (int, error) { return s.bounded.Read(b) }
