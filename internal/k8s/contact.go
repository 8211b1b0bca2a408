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

// maxPingInterval is the longest time for which a working API server sends nothing: client-go sends a ping after 30 s
// (ReadIdleTimeout).
const maxPingInterval = 35 * time.Second

// contactTracker tracks the last contact with the API server, by the connections to it. It sends nothing.
type contactTracker struct {
	mu    sync.Mutex
	conns map[*trackedConn]bool
	last  time.Time
}

// trackedConn is a connection to the API server.
type trackedConn struct {
	net.Conn
	tracker *contactTracker
	// lastRead is the time at which the API server last sent something; nil for never. Until then the connection proves
	// nothing, because the kernel also accepts connections for a process that hangs.
	lastRead atomic.Pointer[time.Time]
}

// newContactTracker returns a tracker. The start counts as a contact.
func newContactTracker() *contactTracker {
	return &contactTracker{conns: map[*trackedConn]bool{}, last: time.Now()}
}

// dialer opens a connection.
type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// wrap returns a dialer whose connections are tracked.
func (h *contactTracker) wrap(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}

		tracked := &trackedConn{Conn: c, tracker: h}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.conns[tracked] = true
		return tracked, nil
	}
}

// age returns the time since the last contact. The start counts as a contact.
func (h *contactTracker) age() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()

	at := time.Now()
	for c := range h.conns {
		contact := c.lastContact(at)
		if contact.After(h.last) {
			h.last = contact
		}
	}

	return at.Sub(h.last)
}

// Read implements net.Conn.
func (c *trackedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		at := time.Now()
		c.lastRead.Store(&at)
	}

	return n, err
}

// Close implements net.Conn.
func (c *trackedConn) Close() error {
	c.tracker.mu.Lock()
	delete(c.tracker.conns, c)
	c.tracker.mu.Unlock()
	return c.Conn.Close()
}

// lastContact returns the time at which the other end last acknowledged something, such as a keepalive. If its process
// owes an answer, lastContact returns the time at which the process last sent something.
func (c *trackedConn) lastContact(at time.Time) time.Time {
	read := c.lastRead.Load()
	if read == nil {
		return time.Time{}
	}

	contact := *read
	tcp, ok := c.Conn.(syscall.Conn)
	if !ok || at.Sub(contact) >= maxPingInterval {
		return contact
	}

	raw, err := tcp.SyscallConn()
	if err != nil {
		return contact
	}

	_ = raw.Control(func(fd uintptr) { // it fails if the connection was closed meanwhile
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			contact = at.Add(-time.Duration(info.Last_ack_recv) * time.Millisecond)
		}
	})
	return contact
}

// APIAge returns the time since the last contact with the API server.
func (k *Cluster) APIAge() time.Duration {
	return k.clients.contact.age()
}
