package bgp

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// Routers on another port are dialed there. Port 179 of the node may be another daemon's, which does not know these routers:
// nothing here listens, and what they dial disturbs nothing.
func TestInteropPort(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		taken, err := net.Listen("tcp", ":179")
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
		dialed := make(chan struct{}, 1)
		go func() {
			for {
				conn, err := taken.Accept()
				if err != nil {
					return
				}
				conn.Close()
				select {
				case dialed <- struct{}{}:
				default:
				}
			}
		}()
		l := newLabOf(t, frrConfig, strings.ReplaceAll(birdConfig, " as 65000; neighbor", " port 1179 as 65000; connect delay time 1; neighbor"), "-p", "1179")
		s, _ := run(t)
		set(t, s, desire([]lb.Peer{l.frr4}))
		await(t, "the session on the usual port", "cannot connect: connection refused", func() string { return session(s, "frr4").LastError })
		for _, p := range []*lb.Peer{&l.frr4, &l.frr6, &l.bird4, &l.bird6} {
			p.Port = 1179
		}
		select {
		case <-dialed:
		case <-time.After(patience):
			t.Fatal("no router dialed")
		}
		set(t, s, desire(l.peers(), l.routes()...))
		l.up(t)
		if got := session(s, "frr4"); got.State != lb.Established {
			t.Errorf("%+v", got)
		}
	})
}

// nodeBIRD is another BGP daemon on the node, which listens on port 179 and has a session with FRR from the node's address.
const nodeBIRD = `
log stderr all;
router id 192.0.2.1;
protocol device {}
protocol static { ipv4; route 203.0.113.0/24 unreachable; }
protocol bgp frr { local 192.0.2.1 as 4200000000; neighbor 192.0.2.2 as 65001; connect retry time 1;
  error wait time 1,1; connect delay time 1; ipv4 { import none; export all; }; }
`

const viaNodeBIRD = "via 192.0.2.1 path 4200000000 communities  large "

// routerBIRD is a router for which any number of daemons on a node dial from one address.
const routerBIRD = `
log stderr all;
router id 192.0.2.2;
protocol device {}
protocol kernel { ipv4 { export all; }; }
protocol bgp node { local 192.0.2.2 as 65001; neighbor 192.0.2.1 as 4200000000; passive; ipv4 { import all; export none; }; }
protocol bgp second { local 192.0.2.2 as 65001; neighbor 192.0.2.9 as 4200000000; passive; ipv4 { import all; export none; }; }
`

// closedConnection is what an engine says of a router that ends a connection without a word.
const closedConnection = "the router closed the connection before its OPEN: it may not know this node as a peer, or another daemon has a session from there"

// A router takes one session from an address, and keeps the first: whoever comes second is refused (RFC 4271 section 6.8), by
// BIRD without a word, and the first is not disturbed. From another address of the node both work (metallb#114).
func TestInteropLocalDaemon(t *testing.T) {
	for _, tt := range []struct {
		name, refused, suffix string
		start                 func(*testing.T, *nstest.NS) realRouter
	}{
		{"FRR", refusedOpen, "", func(t *testing.T, ns *nstest.NS) realRouter {
			f := startFRR(t, ns, frrConfig)
			f.Configure("router bgp 65001", "neighbor 192.0.2.9 remote-as 4200000000", "address-family ipv4 unicast", "neighbor 192.0.2.9 activate")
			return f
		}},
		{"BIRD", closedConnection, " preference 100", func(t *testing.T, ns *nstest.NS) realRouter { return startBIRD(t, ns, routerBIRD) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			nstest.Run(t, func(t *testing.T) {
				node, ns := nstest.Self(t), nstest.New(t)
				nstest.Veth(t, node, "eth0", ns, "eth0")
				node.AddAddress("eth0", "192.0.2.1/24", "192.0.2.9/24")
				ns.AddAddress("eth0", "192.0.2.2/24")
				router := tt.start(t, ns)
				local := startBIRD(t, node, nodeBIRD)
				viaNode := viaNodeBIRD + tt.suffix
				await(t, "the route of the node's BIRD", viaNode, func() string { return router.route("203.0.113.0/24") })
				kernel := watchKernel(t, ns)
				nstest.Until(t, patience, "it is in the router's kernel", func() bool { return kernel.has("203.0.113.0/24") })
				peer := lb.Peer{
					Name: "router", Address: netip.MustParseAddr("192.0.2.2"), Port: 179, LocalASN: 4200000000, PeerASN: 65001, HoldTime: 9 * time.Second,
					ConnectTime: time.Second, GracefulRestart: true,
				}
				s, _ := run(t)
				set(t, s, desire([]lb.Peer{peer}, route(both4, "router")))
				await(t, "the second session from one address", tt.refused, func() string { return session(s, "router").LastError })

				peer.SourceAddress = netip.MustParseAddr("192.0.2.9")
				set(t, s, desire([]lb.Peer{peer}, route(both4, "router")))
				await(t, "our route from another address", strings.Replace(viaNode, "192.0.2.1", "192.0.2.9", 1), func() string { return router.route(both4) })
				if got := router.route("203.0.113.0/24"); got != viaNode || local.established() != 1 || kernel.lost("203.0.113.0/24") != nil {
					t.Errorf("the node's BIRD lost its session: %q, lost %v", got, kernel.lost("203.0.113.0/24"))
				}
			})
		})
	}
}
