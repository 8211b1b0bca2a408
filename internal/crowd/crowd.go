// Package crowd bounds the connections that anybody who reaches a port may keep open to this process, so that one
// machine or pod takes neither its memory and file descriptors nor the place of all others.
package crowd

import (
	"net"
	"net/netip"
	"sync"
)

// Limit bounds open connections. The zero fields of a Limit admit none.
type Limit struct {
	// All is how many may be open, OfOne how many of them from one address.
	All, OfOne int

	mu     sync.Mutex
	open   int
	opened map[netip.Addr]int
}

// Admit returns a connection that counts until it is closed; false, and it is closed, if it is one too many.
func (l *Limit) Admit(c net.Conn) (net.Conn, bool) {
	var from netip.Addr
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		from = a.AddrPort().Addr().Unmap()
	}
	l.mu.Lock()
	admitted := l.open < l.All && l.opened[from] < l.OfOne
	if admitted {
		l.count(from, 1)
	}
	l.mu.Unlock()
	if !admitted {
		_ = c.Close()
		return nil, false
	}
	return &conn{Conn: c, leave: sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.count(from, -1)
	})}, true
}

func (l *Limit) count(from netip.Addr, n int) {
	if l.opened == nil {
		l.opened = map[netip.Addr]int{}
	}
	l.open += n
	if l.opened[from] += n; l.opened[from] == 0 {
		delete(l.opened, from)
	}
}

// Listener returns a listener that admits what l accepts.
func (l *Limit) Listener(inner net.Listener) net.Listener { return listener{inner, l} }

type listener struct {
	net.Listener
	limit *Limit
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
	leave func()
}

func (c *conn) Close() error {
	c.leave()
	return c.Conn.Close()
}
