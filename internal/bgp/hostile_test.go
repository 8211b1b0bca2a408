package bgp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
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

// TestHostileRouter: whatever one router sends, its session reports why it is down, and the other session stays up.
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
	add("cut off OPEN",
		"before its OPEN: it may not know this node as a peer, or another daemon has a session from there", func(r *router) {
			r.answer = func(conn net.Conn) { _, _ = conn.Write(openWith()[:24]); conn.Close() }
		})
	add("silent", "", says(nil))
	add("KEEPALIVE for an OPEN", "refused", says(message(19, gobgp.BGP_MSG_KEEPALIVE)))
	add("truncated UPDATE", malformed, establishes(message(21, gobgp.BGP_MSG_UPDATE, 0, 9)))
	add("UPDATE with lying lengths", malformed,
		establishes(message(27, gobgp.BGP_MSG_UPDATE, 0, 0, 255, 255, 64, 1, 9, 0)))
	add("garbage after OPEN", malformed, establishes(garbage()))
	add("NOTIFICATION",
		"closed by the router: NOTIFICATION 6/2 (cease, administrative shutdown), \"maintenance\": enable the neighbor there",
		establishes(message(33, gobgp.BGP_MSG_NOTIFICATION, append([]byte{6, 2, 11}, "maintenance"...)...)))
	add("NOTIFICATION without a reason", "closed by the router: NOTIFICATION 6/10 (cease, BFD down)",
		establishes(message(21, gobgp.BGP_MSG_NOTIFICATION, 6, 10)))
	add("NOTIFICATION for our OPEN",
		"refused this node's OPEN with NOTIFICATION 2/2 (open, bad peer as): it expects another AS than 65000",
		says(message(21, gobgp.BGP_MSG_NOTIFICATION, 2, 2)))
	add("NOTIFICATION after an OPEN", "refused this node's OPEN with NOTIFICATION 2/6", func(r *router) {
		r.answer = func(conn net.Conn) {
			r.send(conn, r.open())
			_, _ = conn.Write(message(21, gobgp.BGP_MSG_NOTIFICATION, 2, 6))
		}
	})
	add("another AS", "the router's AS is 4200000001 and not 65001: correct peerASN", func(r *router) {
		r.answer = func(conn net.Conn) {
			r.asn = 4200000001
			r.send(conn, r.open())
		}
	})
	add("stray OPEN", "", establishes(openWith()))
	add("our router ID", "the router uses this node's router ID", func(r *router) {
		r.asn = 65000 // of our own AS
		r.answer = func(conn net.Conn) {
			open := r.open()
			open.Body.(*gobgp.BGPOpen).ID = netip.MustParseAddr("192.0.2.1")
			r.send(conn, open)
		}
	})

	s.Set(desire(peers, route("198.51.100.1/32", "good", "random", "truncated UPDATE")))
	await(t, "the good router's table", "198.51.100.1/32 igp path [65000] via 127.0.0.1", good.table)
	for name, sentence := range want {
		nstest.Until(t, patience, name+" says "+sentence, func() bool {
			return strings.Contains(session(s, name).LastError, sentence)
		})
		got := session(s, name).LastError
		if t.Logf("%s: %s", name, got); strings.Contains(got, "<nil>") {
			t.Errorf("%s: the sentence has a value that is not there: %s", name, got)
		}
	}
	s.Set(desire(peers, route("198.51.100.2/32", "good")))
	await(t, "the good router's table", "198.51.100.2/32 igp path [65000] via 127.0.0.1", good.table)
	if n := good.opened(); n != 1 {
		t.Errorf("the good session was opened %d times", n)
	}
}

// seedUpdate is an UPDATE with attributes of many kinds.
func seedUpdate(t *testing.T) []byte {
	t.Helper()
	nlri, err1 := gobgp.NewIPAddrPrefix(netip.MustParsePrefix("203.0.113.0/24"))
	hop, err2 := gobgp.NewPathAttributeNextHop(netip.MustParseAddr("127.0.2.1"))
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	b, err := gobgp.NewBGPUpdateMessage(nil, []gobgp.PathAttributeInterface{
		gobgp.NewPathAttributeOrigin(0),
		gobgp.NewPathAttributeAsPath([]gobgp.AsPathParamInterface{gobgp.NewAs4PathParam(gobgp.BGP_ASPATH_ATTR_TYPE_SEQ,
			[]uint32{65001, 65002})}),
		hop,
		gobgp.NewPathAttributeMultiExitDisc(7),
		gobgp.NewPathAttributeCommunities([]uint32{65001<<16 | 1}),
		gobgp.NewPathAttributeLargeCommunities([]*gobgp.LargeCommunity{{ASN: 1, LocalData1: 2, LocalData2: 3}}),
	}, []gobgp.PathNLRI{{NLRI: nlri}}).Serialize()
	must(t, err)
	return b
}

// mutate changes some octets of the attributes and prefixes, and seldom the length of the message, which ends a session
// at once.
func mutate(random *rand.Rand, message []byte) []byte {
	const attributes = gobgp.BGP_HEADER_LENGTH + 4
	b := append([]byte{}, message...)
	for range 1 + random.IntN(4) {
		b[attributes+random.IntN(len(b)-attributes)] = byte(random.Uint32())
	}
	if random.IntN(50) == 0 {
		b = b[:attributes+random.IntN(len(b)-attributes)]
	}
	binary.BigEndian.PutUint16(b[16:], uint16(len(b)))
	return b
}

// TestHostileUpdates: routers that send mutated UPDATEs on sessions that are up, until one of them ends the session,
// disturb no other session: no engine dies.
func TestHostileUpdates(t *testing.T) {
	good := newRouter(t, "127.0.0.1", 65001)
	s, _ := run(t)
	peers := []lb.Peer{good.peer("good", 65000)}
	const routers, each = 8, 100
	seed := seedUpdate(t)
	peers = append(peers, newRouter(t, "127.0.2.100", 65001, establishes(seed)).peer("whole", 65000))
	for i := range routers {
		random := rand.New(rand.NewPCG(16, uint64(i)))
		hostile := newRouter(t, fmt.Sprintf("127.0.2.%d", i+1), 65001, func(r *router) {
			r.answer = func(conn net.Conn) {
				r.send(conn, r.open())
				r.send(conn, gobgp.NewBGPKeepAliveMessage())
				for range each {
					if _, err := conn.Write(mutate(random, seed)); err != nil {
						return
					}
				}
			}
		})
		peers = append(peers, hostile.peer(fmt.Sprintf("hostile%d", i), 65000))
	}
	s.Set(desire(peers, route("198.51.100.1/32", "good")))
	const want = "198.51.100.1/32 igp path [65000] via 127.0.0.1"
	await(t, "the good router's table", want, good.table)
	for i := range routers {
		name := fmt.Sprintf("hostile%d", i)
		nstest.Until(t, patience, name+" was heard", func() bool {
			one := session(s, name)
			return one.State == lb.Established || !one.Since.IsZero() || one.LastError != ""
		})
		t.Logf("%s: %s %s", name, session(s, name).State, session(s, name).LastError)
	}
	nstest.Until(t, patience, "the whole UPDATE was heard", func() bool { return counted(s, "whole").Ignored == 1 })
	s.Set(desire(peers, route("198.51.100.1/32", "good"), route("198.51.100.2/32", "good")))
	await(t, "the good router's table", want+"\n198.51.100.2/32 igp path [65000] via 127.0.0.1", good.table)
	if n := good.opened(); n != 1 {
		t.Errorf("the good session was opened %d times", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, r := range s.records {
		if r.restarts > 0 {
			t.Errorf("the engine of %s died %d times: %s", name, r.restarts, r.backoff.reason)
		}
	}
}

// flood sends a router's many routes, in UPDATEs of 100.
func flood(n int) []byte {
	var out []byte
	for first := 0; first < n; first += 100 {
		var nlri []gobgp.PathNLRI
		for i := first; i < min(n, first+100); i++ {
			p, err := gobgp.NewIPAddrPrefix(netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 16), byte(i >> 8), byte(i)}),
				32))
			if err != nil {
				panic(err)
			}
			nlri = append(nlri, gobgp.PathNLRI{NLRI: p})
		}
		hop, err := gobgp.NewPathAttributeNextHop(netip.MustParseAddr("192.0.2.99"))
		if err != nil {
			panic(err)
		}
		b, err := gobgp.NewBGPUpdateMessage(nil, []gobgp.PathAttributeInterface{
			gobgp.NewPathAttributeOrigin(0),
			gobgp.NewPathAttributeAsPath([]gobgp.AsPathParamInterface{gobgp.NewAs4PathParam(gobgp.BGP_ASPATH_ATTR_TYPE_SEQ,
				[]uint32{65001})}),
			hop,
		}, nlri).Serialize()
		if err != nil {
			panic(err)
		}
		out = append(out, b...)
	}
	return out
}

// TestFlood: a router's routes are not used, and above a limit they end only its own session.
func TestFlood(t *testing.T) {
	good := newRouter(t, "127.0.0.1", 65001)
	chatty := newRouter(t, "127.0.0.2", 65001, establishes(flood(1000)))
	flooding := newRouter(t, "127.0.0.3", 65001, establishes(flood(20_001)))
	s, _ := run(t)
	s.Set(desire([]lb.Peer{good.peer("good", 65000), chatty.peer("chatty", 65000), flooding.peer("flooding", 65000)},
		route("198.51.100.1/32", "good", "chatty", "flooding")))
	nstest.Until(t, patience, "the flooding session is closed", func() bool {
		return strings.HasPrefix(session(s, "flooding").LastError, "the router sent more than")
	})
	nstest.Until(t, patience, "the flooding session stays closed", func() bool {
		return session(s, "flooding").State == "idle" && !session(s, "flooding").Since.IsZero()
	})
	nstest.Until(t, patience, "the chatty router is heard", func() bool { return counted(s, "chatty").Ignored == 1000 })
	await(t, "the good router's log", "+ 198.51.100.1/32 igp path [65000] via 127.0.0.1", good.log)
	established(t, s, "good", "chatty")
}
