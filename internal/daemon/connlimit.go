package daemon

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
)

// ConnLimiter bounds the connections that are open to one port. Otherwise a single machine or pod that reaches the port
// could use up this process's memory and file descriptors, or lock out all others.
type ConnLimiter struct {
	// Max is the number of connections that may be open. A further connection closes the oldest one: proper clients
	// need theirs for a moment only.
	Max int
	// MaxPerAddress is the number of connections that may be open from one address. Further ones are refused.
	MaxPerAddress int

	mu sync.Mutex
	// open holds the *limitedConn that are open, the oldest in front.
	open list.List
	// perAddress counts the open connections by remote address.
	perAddress map[netip.Addr]int
}

// Admit returns a connection that counts as open until it is closed. If its address has too many connections, Admit
// closes c and returns false.
func (l *ConnLimiter) Admit(c net.Conn) (net.Conn, bool) {
	admitted := &limitedConn{Conn: c, limiter: l}
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		admitted.remote = a.AddrPort().Addr().Unmap()
	}

	surplus, ok := l.add(admitted)
	if !ok {
		_ = c.Close()
		return nil, false
	}

	if surplus != nil {
		_ = surplus.Close()
	}
	return admitted, true
}

// Listener returns a listener that accepts the connections of inner that the limiter admits.
func (l *ConnLimiter) Listener(inner net.Listener) net.Listener { return limitedListener{inner, l} }

// add counts a connection, and returns the connection to close in its favour, if any. It returns false if the address
// has too many connections.
func (l *ConnLimiter) add(c *limitedConn) (surplus *limitedConn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.perAddress[c.remote] >= l.MaxPerAddress {
		return nil, false
	}

	if l.perAddress == nil {
		l.perAddress = map[netip.Addr]int{}
	}
	l.perAddress[c.remote]++
	c.element = l.open.PushBack(c)

	if l.open.Len() > l.Max {
		surplus = l.open.Front().Value.(*limitedConn)
	}
	return surplus, true
}

// remove stops counting a connection. It may be called again for the same connection.
func (l *ConnLimiter) remove(c *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if c.element == nil {
		return
	}
	l.open.Remove(c.element)
	c.element = nil

	l.perAddress[c.remote]--
	if l.perAddress[c.remote] == 0 {
		delete(l.perAddress, c.remote)
	}
}

type limitedListener struct {
	net.Listener
	limiter *ConnLimiter
}

// Accept implements net.Listener.
func (l limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if admitted, ok := l.limiter.Admit(c); ok {
			return admitted, nil
		}
	}
}

type limitedConn struct {
	net.Conn
	limiter *ConnLimiter
	remote  netip.Addr
	// element is the connection's place in limiter.open; nil once it is closed.
	element *list.Element
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.limiter.remove(c)
	return c.Conn.Close()
}
