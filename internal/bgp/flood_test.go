package bgp

import (
	"net/netip"
	"strings"
	"testing"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// flood sends a router's many routes, in UPDATEs of 100.
func flood(n int) []byte {
	var out []byte
	for first := 0; first < n; first += 100 {
		var nlri []gobgp.PathNLRI
		for i := first; i < min(n, first+100); i++ {
			p, err := gobgp.NewIPAddrPrefix(netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 16), byte(i >> 8), byte(i)}), 32))
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
			gobgp.NewPathAttributeAsPath([]gobgp.AsPathParamInterface{gobgp.NewAs4PathParam(gobgp.BGP_ASPATH_ATTR_TYPE_SEQ, []uint32{65001})}),
			hop,
		}, nlri).Serialize()
		if err != nil {
			panic(err)
		}
		out = append(out, b...)
	}
	return out
}

// A router's routes are not used, and above a limit they end only its own session.
func TestFlood(t *testing.T) {
	good := newRouter(t, "127.0.0.1", 65001)
	chatty := newRouter(t, "127.0.0.2", 65001, establishes(flood(1000)))
	flooding := newRouter(t, "127.0.0.3", 65001, establishes(flood(20_001)))
	s, _ := run(t)
	set(t, s, desire([]lb.Peer{good.peer("good", 65000), chatty.peer("chatty", 65000), flooding.peer("flooding", 65000)},
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
