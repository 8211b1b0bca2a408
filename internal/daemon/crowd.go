package daemon

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
)

// Crowd bounds the connections that anybody who reaches a port may keep open to this process, so that no machine or pod
// takes its memory and file descriptors, or the place of all others.
type Crowd struct {
	// All is how many may be open: one more ends the oldest, since those who use a connection as they should need it
	// for a moment. OfOne is how many may be open from one address: it gets no more.
	All, OfOne int

	mu sync.Mutex
	// open has the connections, the oldest in front.
	open list.List
	of   map[netip.Addr]int
}

// Admit returns a connection that counts until it is closed; false, and it is closed, if it is one too many of its
// address.
func (l *Crowd) Admit(c net.Conn) (net.Conn, bool) {
	admitted := &conn{Conn: c, limit: l}
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		admitted.from = a.AddrPort().Addr().Unmap()
	}
	oldest, ok := l.enter(admitted)
	if !ok {
		_ = c.Close()
		return nil, false
	}
	if oldest != nil {
		_ = oldest.Close()
	}
	return admitted, true
}

// enter counts a connection, and returns the one that has to go for it, if any.
func (l *Crowd) enter(c *conn) (oldest *conn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[c.from] >= l.OfOne {
		return nil, false
	}
	if l.of == nil {
		l.of = map[netip.Addr]int{}
	}
	l.of[c.from]++
	c.place = l.open.PushBack(c)
	if l.open.Len() > l.All {
		oldest = l.open.Front().Value.(*conn)
	}
	return oldest, true
}

func (l *Crowd) leave(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.place == nil {
		return
	}
	l.open.Remove(c.place)
	c.place = nil
	if l.of[c.from]--; l.of[c.from] == 0 {
		delete(l.of, c.from)
	}
}

// Listener returns a listener that admits what the inner one accepts.
func (l *Crowd) Listener(inner net.Listener) net.Listener { return listener{inner, l} }

type listener struct {
	net.Listener
	limit *Crowd
}

func (l listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c, ok := l.limit.Admit(c); ok {
			return c, nil
		}
	}
}

type conn struct {
	net.Conn
	limit *Crowd
	from  netip.Addr
	// place in the list of open ones; nil once it left.
	place *list.Element
}

func (c *conn) Close() error {
	c.limit.leave(c)
	return c.Conn.Close()
}
