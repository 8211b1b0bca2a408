package bgp

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// says makes a router answer each connection with these bytes.
func says(b []byte) func(*router) {
	return func(r *router) {
		r.answer = func(conn net.Conn) { _, _ = conn.Write(b) }
	}
}

// message is a BGP message of any content.
func message(length int, kind byte, body ...byte) []byte {
	m := bytes.Repeat([]byte{0xff}, 16)
	m = binary.BigEndian.AppendUint16(m, uint16(length))
	return append(append(m, kind), body...)
}

// establishes makes a router open the session and then send these bytes.
func establishes(b []byte) func(*router) {
	return func(r *router) {
		r.answer = func(conn net.Conn) {
			r.send(conn, r.open())
			r.send(conn, gobgp.NewBGPKeepAliveMessage())
			_, _ = conn.Write(b)
		}
	}
}

// openWith is an OPEN with one optional parameter of these bytes.
func openWith(param ...byte) []byte {
	body := append([]byte{4, 0xfd, 0xe9, 0, 90, 192, 0, 2, 250, byte(len(param))}, param...)
	return message(gobgp.BGP_HEADER_LENGTH+len(body), gobgp.BGP_MSG_OPEN, body...)
}

func garbage() []byte {
	random := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 5000)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

// Whatever one router sends, its session reports why it is down, and the other session stays up.
func TestHostileRouter(t *testing.T) {
	good := newRouter(t, "127.0.0.1", 65001)
	s, _ := run(t)
	peers := []lb.Peer{good.peer("good", 65000)}
	want := map[string]string{}
	add := func(name, sentence string, option func(*router)) {
		address := netip.MustParseAddr("127.0.1.1").As4()
		address[3] += byte(len(want))
		peers = append(peers, newRouter(t, netip.AddrFrom4(address).String(), 65001, option).peer(name, 65000))
		want[name] = sentence
	}
	const malformed = "the router sent a malformed message"
	add("random", malformed, says(garbage()))
	add("marker", malformed, says(append(make([]byte, 16), 0, 29, 1)))
	add("short length", malformed, says(message(5, gobgp.BGP_MSG_OPEN)))
	add("long length", malformed, says(message(60000, gobgp.BGP_MSG_OPEN, make([]byte, 60000)...)))
	add("type", malformed, says(message(19, 77)))
	add("truncated OPEN", malformed, says(message(22, gobgp.BGP_MSG_OPEN, 4, 0, 1)))
	add("OPEN with a lying parameter", malformed, says(openWith(2, 200, 1, 4, 0)))
	add("OPEN with a lying capability", malformed, says(openWith(2, 4, 64, 200, 0, 0)))
	add("OPEN with a lying host name", malformed, says(openWith(2, 4, 73, 2, 250, 1)))
	add("cut off OPEN", "before its OPEN", func(r *router) {
		r.answer = func(conn net.Conn) { _, _ = conn.Write(openWith()[:24]); conn.Close() }
	})
	add("silent", "", says(nil))
	add("KEEPALIVE for an OPEN", "refused", says(message(19, gobgp.BGP_MSG_KEEPALIVE)))
	add("truncated UPDATE", malformed, establishes(message(21, gobgp.BGP_MSG_UPDATE, 0, 9)))
	add("UPDATE with lying lengths", malformed, establishes(message(27, gobgp.BGP_MSG_UPDATE, 0, 0, 255, 255, 64, 1, 9, 0)))
	add("garbage after OPEN", malformed, establishes(garbage()))
	add("NOTIFICATION", "closed by the router: cease, administrative shutdown, \"maintenance\"",
		establishes(message(33, gobgp.BGP_MSG_NOTIFICATION, append([]byte{6, 2, 11}, "maintenance"...)...)))
	add("stray OPEN", "", establishes(openWith()))
	add("our router ID", "the router uses this node's router ID", func(r *router) {
		r.asn = 65000 // of our own AS
		r.answer = func(conn net.Conn) {
			open := r.open()
			open.Body.(*gobgp.BGPOpen).ID = netip.MustParseAddr("192.0.2.1")
			r.send(conn, open)
		}
	})

	set(t, s, desire(peers, route("198.51.100.1/32", "good", "random", "truncated UPDATE")))
	await(t, "the good router's table", "198.51.100.1/32 igp path [65000] via 127.0.0.1", good.table)
	for name, sentence := range want {
		nstest.Until(t, patience, name+" says "+sentence, func() bool {
			return strings.Contains(session(s, name).LastError, sentence)
		})
		t.Logf("%s: %s", name, session(s, name).LastError)
	}
	set(t, s, desire(peers, route("198.51.100.2/32", "good")))
	await(t, "the good router's table", "198.51.100.2/32 igp path [65000] via 127.0.0.1", good.table)
	if n := good.opened(); n != 1 {
		t.Errorf("the good session was opened %d times", n)
	}
}
