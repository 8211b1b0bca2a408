package crowd

import (
	"io"
	"net"
	"testing"
)

// from is a connection that seems to come from an address.
type from struct {
	net.Conn
	address net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.address }

func dial(t *testing.T, l *Limit, address string) (ours net.Conn, theirs net.Conn, ok bool) {
	t.Helper()
	c, theirs := net.Pipe()
	t.Cleanup(func() { theirs.Close() })
	ours, ok = l.Admit(from{c, &net.TCPAddr{IP: net.ParseIP(address)}})
	return ours, theirs, ok
}

func closed(c net.Conn) bool {
	_, err := c.Write([]byte{1})
	return err == io.ErrClosedPipe
}

func TestLimit(t *testing.T) {
	l := &Limit{All: 4, OfOne: 2}
	first, firstPeer, ok := dial(t, l, "192.0.2.1")
	if !ok {
		t.Fatal("the first is refused")
	}
	second, _, _ := dial(t, l, "::ffff:192.0.2.1")
	if _, peer, ok := dial(t, l, "192.0.2.1"); ok || !closed(peer) {
		t.Error("a third of one address is admitted, or stays open")
	}
	second.Close()
	second.Close() // counts once
	if _, _, ok := dial(t, l, "192.0.2.1"); !ok {
		t.Error("no place after one was closed")
	}
	if _, _, ok := dial(t, l, "192.0.2.1"); ok {
		t.Error("one that is closed twice counts twice")
	}
	dial(t, l, "2001:db8::1")
	dial(t, l, "2001:db8::2")
	if _, _, ok := dial(t, l, "2001:db8::3"); !ok {
		t.Error("where all places are taken the newest is refused")
	}
	if !closed(firstPeer) {
		t.Error("the oldest stays open")
	}
	first.Close()
	if l.open.Len() != 4 || l.of[first.(*conn).from] != 1 {
		t.Errorf("%d open, %d of the first address", l.open.Len(), l.of[first.(*conn).from])
	}
}
