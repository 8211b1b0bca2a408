package k8s

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pingTime is how long an API server that works may send nothing: client-go asks it after 30 s (ReadIdleTimeout).
const pingTime = 35 * time.Second

// hearing knows when the API server was last heard, by the connections to it. It asks nothing.
type hearing struct {
	mu    sync.Mutex
	conns map[*heardConn]bool
	last  time.Time
}

// heardConn is a connection to the API server.
type heardConn struct {
	net.Conn
	hearing *hearing
	// read is when the API server last sent something, nil for never: the kernel also accepts connections for a process
	// that hangs.
	read atomic.Pointer[time.Time]
}

func newHearing() *hearing { return &hearing{conns: map[*heardConn]bool{}, last: time.Now()} }

// over returns dial with all its connections heard.
func (h *hearing) over(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		heard := &heardConn{Conn: c, hearing: h}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.conns[heard] = true
		return heard, nil
	}
}

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

func (c *heardConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		now := time.Now()
		c.read.Store(&now)
	}
	return n, err
}

func (c *heardConn) Close() error {
	c.hearing.mu.Lock()
	delete(c.hearing.conns, c)
	c.hearing.mu.Unlock()
	return c.Conn.Close()
}

// age returns how long ago the API server was last heard; at first it counts as heard.
func (h *hearing) age() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for c := range h.conns {
		if at := c.heard(now); at.After(h.last) {
			h.last = at
		}
	}
	return now.Sub(h.last)
}

// heard returns when the other end last acknowledged something, as it does keepalives, or, if its process owes an
// answer, when that last sent something.
func (c *heardConn) heard(now time.Time) (at time.Time) {
	read := c.read.Load()
	if read == nil {
		return time.Time{}
	}
	at = *read
	if tcp, ok := c.Conn.(syscall.Conn); ok && now.Sub(at) < pingTime {
		if raw, err := tcp.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { // it may be closed meanwhile
				if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
					at = now.Add(-time.Duration(info.Last_ack_recv) * time.Millisecond)
				}
			})
		}
	}
	return at
}

// APIAge returns how long ago the API server was last heard.
func (k *Cluster) APIAge() time.Duration { return k.clients.hearing.age() }
