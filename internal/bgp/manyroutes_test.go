package bgp

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// many is how many routes a node may have.
const many = 10_000

func manyPrefixes() []netip.Prefix {
	var out []netip.Prefix
	for i := range many {
		out = append(out, netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 32))
	}
	return out
}

// received is how many IPv4 routes FRR has from a peer.
func (f frr) received(peer string) int {
	var answer struct {
		Peers map[string]struct{ PfxRcd int }
	}
	f.ShowJSON("show bgp ipv4 unicast summary", &answer)
	return answer.Peers[peer].PfxRcd
}

// TestInteropManyRoutes: a router gets thousands of routes, and of one more only that. The log shows how long that
// took, and how long GoBGP alone needs for the same.
func TestInteropManyRoutes(t *testing.T) {
	if nstest.Race() {
		t.Skip("the figures would be of the race detector, which takes a minute")
	}
	inLab(t, func(t *testing.T, l *lab) {
		s, _ := runWith(t, Config{})
		s.Set(desire([]lb.Peer{l.frr4, l.bird4}))
		established(t, s, "frr4", "bird4")
		var routes []lb.Route
		for _, p := range manyPrefixes() {
			routes = append(routes, lb.Route{Prefix: p, Peers: []string{"frr4"}, Communities: []lb.Community{{A: 65000, B: 7}}})
		}
		all := func(n int) func() bool { return func() bool { return l.frr.received("192.0.2.1") == n } }
		began := time.Now()
		s.Set(desire([]lb.Peer{l.frr4, l.bird4}, routes...))
		called := time.Since(began)
		nstest.Until(t, 5*patience, "FRR has all routes", all(many))
		ours := time.Since(began)
		nstest.Until(t, patience, "FRR's kernel has the last one", func() bool {
			return l.frrKernel.has(routes[many-1].Prefix.String())
		})

		var updates uint64
		nstest.Until(t, patience, "the messages are counted", func() bool {
			before := updates
			updates = counted(s, "frr4").Updates
			return updates > 0 && updates == before && session(s, "frr4").Advertised == many
		})
		// FRR waits for 50 ms before it looks at what it was told; BIRD does not.
		atFRR, atBIRD := l.frrKernel.await(both4), l.birdKernel.await(both4)
		began = time.Now()
		s.Set(desire([]lb.Peer{l.frr4, l.bird4}, append(routes, route(both4, "bird4", "frr4"))...))
		one := map[string]time.Duration{}
		for name, appeared := range map[string]<-chan time.Time{"frr": atFRR, "bird": atBIRD} {
			select {
			case at := <-appeared:
				one[name] = at.Sub(began)
			case <-time.After(5 * patience):
				t.Fatal("one route more does not arrive")
			}
		}
		nstest.Until(t, patience, "the message is counted, and no others", func() bool {
			n := counted(s, "frr4").Updates
			return n > updates && n < updates+5
		})
		s.Leave()
		nstest.Until(t, 5*patience, "FRR has no routes", all(0))

		alone := bareGoBGP(t, l.frr4)
		began = time.Now()
		if _, err := alone.AddPath(apiutil.AddPathRequest{Paths: barePaths(t)}); err != nil {
			t.Fatal(err)
		}
		nstest.Until(t, 5*patience, "FRR has all routes", all(many))
		bare := time.Since(began)
		t.Logf("%d routes to FRR took %v, of which Set %v; GoBGP alone %v; one more, to the kernels of both, %v", many, ours,
			called, bare, one)
		// The command bench reads these.
		t.Logf("figure bgp_routes_10k_ratio %.2f", float64(ours)/float64(bare))
		t.Logf("figure bgp_routes_10k_ms %.0f", float64(ours)/float64(time.Millisecond))
		t.Logf("figure bgp_one_route_ms %.1f", float64(one["bird"])/float64(time.Millisecond))
		t.Logf("figure bgp_one_route_frr_ms %.1f", float64(one["frr"])/float64(time.Millisecond))
	})
}

// bareGoBGP is a GoBGP server with one established session.
func bareGoBGP(t *testing.T, p lb.Peer) *server.BgpServer {
	t.Helper()
	s := server.NewBgpServer(server.LoggerOption(slog.New(slog.DiscardHandler), nil))
	go s.Serve()
	t.Cleanup(s.Stop)
	must(t, s.StartBgp(t.Context(), &api.StartBgpRequest{Global: &api.Global{
		Asn: 65535, RouterId: "192.0.2.1", ListenPort: -1,
	}}))
	must(t, s.AddPeer(t.Context(), &api.AddPeerRequest{Peer: &api.Peer{
		Conf: &api.PeerConf{NeighborAddress: p.Address.String(), LocalAsn: p.LocalASN, PeerAsn: p.PeerASN},
	}}))
	nstest.Until(t, patience, "GoBGP's session is up", func() (up bool) {
		err := s.ListPeer(t.Context(), &api.ListPeerRequest{}, func(p *api.Peer) {
			up = p.State.SessionState == api.PeerState_SESSION_STATE_ESTABLISHED
		})
		return err == nil && up
	})
	return s
}

func barePaths(t *testing.T) []*apiutil.Path {
	t.Helper()
	var out []*apiutil.Path
	for _, p := range manyPrefixes() {
		nlri, err1 := gobgp.NewIPAddrPrefix(p)
		hop, err2 := gobgp.NewPathAttributeNextHop(netip.IPv4Unspecified())
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		out = append(out, &apiutil.Path{Family: gobgp.RF_IPv4_UC, Nlri: nlri, Attrs: []gobgp.PathAttributeInterface{
			gobgp.NewPathAttributeOrigin(gobgp.BGP_ORIGIN_ATTR_TYPE_IGP), hop,
			gobgp.NewPathAttributeCommunities([]uint32{65000<<16 | 7}),
		}})
	}
	return out
}
