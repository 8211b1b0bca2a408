package bgp

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

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
		gobgp.NewPathAttributeAsPath([]gobgp.AsPathParamInterface{gobgp.NewAs4PathParam(gobgp.BGP_ASPATH_ATTR_TYPE_SEQ, []uint32{65001, 65002})}),
		hop,
		gobgp.NewPathAttributeMultiExitDisc(7),
		gobgp.NewPathAttributeCommunities([]uint32{65001<<16 | 1}),
		gobgp.NewPathAttributeLargeCommunities([]*gobgp.LargeCommunity{{ASN: 1, LocalData1: 2, LocalData2: 3}}),
	}, []gobgp.PathNLRI{{NLRI: nlri}}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// mutate changes some octets of the attributes and prefixes, and seldom the length of the message, which ends a session at once.
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

// Routers that send mutated UPDATEs on sessions that are up, until one of them ends the session, disturb nobody: no engine dies.
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
	set(t, s, desire(peers, route("198.51.100.1/32", "good")))
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
	set(t, s, desire(peers, route("198.51.100.1/32", "good"), route("198.51.100.2/32", "good")))
	await(t, "the good router's table", want+"\n198.51.100.2/32 igp path [65000] via 127.0.0.1", good.table)
	if n := good.opened(); n != 1 {
		t.Errorf("the good session was opened %d times", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, r := range s.records {
		if r.restarts > 0 {
			t.Errorf("the engine of %s died %d times: %s", name, r.restarts, r.trouble.why)
		}
	}
}
