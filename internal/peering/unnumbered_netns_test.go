package peering

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bfd"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const patience = 30 * time.Second

// frrUnnumbered is the configuration in docs/bgp.md.
const frrUnnumbered = `
frr defaults traditional
bfd
 profile fast
  receive-interval 100
  transmit-interval 100
router bgp 65001
 bgp router-id 192.0.2.2
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 neighbor eth0 interface remote-as external
 neighbor eth0 bfd profile fast
 address-family ipv4 unicast
  neighbor eth0 activate
 address-family ipv6 unicast
  neighbor eth0 activate
`

const service4, service6 = "198.51.100.1/32", "2001:db8:ffff::1/128"

// unnumberedNode runs a Finder beside BFD and BGP.
type unnumberedNode struct {
	*Peering
	t *testing.T
}

func startUnnumbered(t *testing.T, peers ...lb.Peer) *unnumberedNode {
	t.Helper()
	n := &unnumberedNode{t: t}
	links := link.New(slog.New(slog.NewTextHandler(t.Output(), nil)), func() { n.loop.Hurry() })
	n.Peering = startPathsOn(t, links.Links)
	go func() { _ = n.finder.Run(t.Context()) }()
	go func() { _ = links.Run(t.Context()) }()
	n.set(peers...)
	return n
}

func (n *unnumberedNode) set(peers ...lb.Peer) {
	var names []string
	for _, p := range peers {
		names = append(names, p.Name)
	}
	routes := map[netip.Prefix]*[]lb.Route{}
	for _, text := range []string{service4, service6} {
		prefix := netip.MustParsePrefix(text)
		routes[prefix] = &[]lb.Route{{Prefix: prefix, Peers: names}}
	}
	n.Peering.Set(bgp.Desired{RouterID: netip.MustParseAddr("192.0.2.1"), Peers: peers, Routes: lb.MapOf(routes)}, nil)
}

func (n *unnumberedNode) until(name, what string, ok func(lb.Session) bool) {
	n.t.Helper()
	nstest.Until(n.t, patience, what, func() bool { return ok(n.session(name)) })
}

// routerOn is the router of another AS that a node of this one finds on eth0.
func routerOn(localASN uint32) lb.Peer {
	return lb.Peer{
		Name: "r", Interface: "eth0", Port: 179, DualStack: true, LocalASN: localASN, PeerASN: 65001,
		HoldTime: 9 * time.Second, ConnectTime: time.Second,
	}
}

// fast is a profile of BFD, and well is a session that lacks nothing with it.
var fast = &lb.BFD{Transmit: 100 * time.Millisecond, Receive: 100 * time.Millisecond, Multiplier: 3, MinimumTTL: 254}

func well(s lb.Session) bool { return bothUp(s) && s.Withheld == "" }

// bothInKernel waits until the router's kernel routes both prefixes to the node.
func bothInKernel(t *testing.T, ns *nstest.NS, via netip.Addr) {
	t.Helper()
	inKernel(t, ns, service4, via)
	inKernel(t, ns, service6, via)
}

func inKernel(t *testing.T, ns *nstest.NS, prefix string, via netip.Addr) {
	t.Helper()
	family := "-4"
	if strings.Contains(prefix, ":") {
		family = "-6"
	}
	nstest.Until(t, patience, prefix+" is in the router's kernel", func() bool {
		return strings.Contains(ns.Output("ip", family, "route", "show", prefix), via.String()+" dev eth0")
	})
}

func linkLocal(t *testing.T, ns *nstest.NS) netip.Addr {
	t.Helper()
	var out netip.Addr
	nstest.Until(t, patience, "a link-local address", func() bool {
		for _, word := range strings.Fields(ns.Output("ip", "-6", "-o", "addr", "show", "dev", "eth0", "scope", "link",
			"-tentative")) {
			if p, err := netip.ParsePrefix(word); err == nil {
				out = p.Addr()
			}
		}
		return out.IsValid()
	})
	return out
}

// A node and a router without any address on the link but link-local ones find each other. Routes of both families
// reach the router's kernel and carry packets, BFD runs, and all comes back after the router restarts and after the
// link was down.
func TestUnnumberedWithFRR(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, self, "eth0", ns, "eth0")
		for _, n := range []*nstest.NS{self, ns} {
			n.Sysctl("ipv6/conf/all/forwarding", "1") // so that neither kernel takes notice of advertisements
		}
		peer := routerOn(4200000000)
		peer.GracefulRestart, peer.BFD = true, fast
		elsewhere := peer
		elsewhere.Name, elsewhere.Interface = "elsewhere", "eth7"
		n := startUnnumbered(t, peer, elsewhere)
		n.until("elsewhere", "the link that this node lacks is said", func(s lb.Session) bool {
			return s.LastError == "this node has no link eth7" && s.State == "idle"
		})
		router := startFRR(t, ns, frrUnnumbered)
		n.until("r", "the session is up", well)
		node := linkLocal(t, self)
		bothInKernel(t, ns, node)
		if got := n.session("r").Address; got.Zone() != "eth0" || got.WithZone("") != linkLocal(t, ns) {
			t.Errorf("the session is with %s", got)
		}
		for _, prefix := range []string{"ipv4 unicast " + service4, "ipv6 unicast " + service6} {
			if got := router.Show("show bgp " + prefix); !strings.Contains(got, node.String()) ||
				!strings.Contains(got, "4200000000") ||
				!strings.Contains(got, "best") {
				t.Errorf("FRR's table: %s", got)
			}
		}
		if got := router.Show("show bfd peers brief"); !strings.Contains(got, "up") || !strings.Contains(got, node.String()) {
			t.Errorf("FRR's BFD: %s", got)
		}

		// A packet comes and its answer goes, of both families.
		for n, addresses := range map[*nstest.NS][]string{
			self: {service4, service6}, ns: {"203.0.113.9/32", "2001:db8:9::9/128"},
		} {
			n.SetUp("lo")
			n.AddAddress("lo", addresses...)
		}
		self.Output("ip", "route", "add", "203.0.113.9/32", "via", "inet6", linkLocal(t, ns).String(), "dev", "eth0")
		self.Output("ip", "-6", "route", "add", "2001:db8:9::9/128", "via", linkLocal(t, ns).String(), "dev", "eth0")
		for from, to := range map[string]string{"203.0.113.9": "198.51.100.1", "2001:db8:9::9": "2001:db8:ffff::1"} {
			nstest.Until(t, 30*time.Second, "an answer of "+to, func() bool {
				return ns.Command("ping", "-c", "1", "-W", "1", "-I", from, to).Run() == nil
			})
		}

		peer.PeerASN = 0 // dynamicASN: external
		before := n.session("r").Since
		n.set(peer)
		n.until("r", "the session is up with any AS", func(s lb.Session) bool { return well(s) && s.Since.After(before) })
		bothInKernel(t, ns, node)

		router.Kill()
		n.until("r", "the session ends with the router", func(s lb.Session) bool {
			return s.LastError == "BFD: detection time expired"
		})
		router.Start()
		n.until("r", "the session is up after the router's restart", well)
		bothInKernel(t, ns, node)

		ns.SetDown("eth0")
		n.until("r", "the session ends with the link", func(s lb.Session) bool { return s.State != lb.Established })
		ns.SetUp("eth0")
		n.until("r", "the session is up after the link was down", well)
		bothInKernel(t, ns, node)
	})
}

// The other settings of a session work on it, too. An IPv4 address of the node is no next hop for a router that has
// none.
func TestUnnumberedSettings(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, self, "eth0", ns, "eth0")
		peer := routerOn(4200000000)
		self.AddAddress("eth0", "192.0.2.1/24")
		n := startUnnumbered(t)
		node := linkLocal(t, self)
		plain := strings.Replace(frrUnnumbered, " neighbor eth0 bfd profile fast\n", "", 1)
		for _, tt := range []struct {
			name, lines string
			change      func(*lb.Peer)
		}{
			{"password", " neighbor eth0 password Secret-1\n", func(p *lb.Peer) { p.Password = "Secret-1" }},
			{"TTL security", " neighbor eth0 ttl-security hops 1\n", func(p *lb.Peer) { p.MinTTL = 255 }},
			{"internal", " neighbor eth0 remote-as internal\n", func(p *lb.Peer) { p.LocalASN = 65001 }},
			{"another port", "", func(p *lb.Peer) { p.Port = 1179 }},
		} {
			t.Log(tt.name)
			changed := peer
			tt.change(&changed)
			n.set(changed)
			var own []string
			if changed.Port != peer.Port {
				own = []string{"-p", "1179"}
			}
			router := startFRR(t, ns, strings.Replace(plain, " address-family ipv4", tt.lines+" address-family ipv4", 1), own...)
			n.until("r", tt.name+": the session is up", lb.Session.IsEstablished)
			bothInKernel(t, ns, node)
			router.Kill()
			n.set()
			ns.Output("ip", "-4", "route", "del", "198.51.100.1")
			ns.Output("ip", "-6", "route", "del", "2001:db8:ffff::1")
		}
		n.set(peer)
		router := startFRR(t, ns,
			strings.Replace(plain, " address-family ipv4", " neighbor eth0 password Secret-1\n address-family ipv4", 1))
		n.until("r", "a wrong password is suspected", func(s lb.Session) bool {
			return strings.HasSuffix(s.LastError, "timeout")
		})
		router.Kill()
	})
}

// birdUnnumbered finds no neighbor, and must be told this node's address.
const birdUnnumbered = `
log stderr all;
router id 192.0.2.2;
protocol device {}
protocol radv { interface "eth0" { max ra interval 10; default lifetime 0; }; }
protocol bfd { interface "eth0" { min rx interval 100 ms; min tx interval 100 ms; multiplier 3; }; }
protocol kernel { ipv4 { export all; }; }
protocol kernel { ipv6 { export all; }; }
protocol bgp node { local as 65001; neighbor NODE%eth0 as 65000; bfd on; connect retry time 1; error wait time 1,1;
  ipv4 { import all; export none; extended next hop on; }; ipv6 { import all; export none; }; }
`

// BIRD advertises itself by its protocol radv, and has the node's link-local address in its configuration.
func TestUnnumberedWithBIRD(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, self, "eth0", ns, "eth0")
		node, router := linkLocal(t, self), linkLocal(t, ns)
		peer := routerOn(65000)
		peer.BFD = fast
		n := startUnnumbered(t, peer)
		nstest.StartBIRD(t, ns, strings.Replace(birdUnnumbered, "NODE", node.String(), 1))
		n.until("r", "the session is up", well)
		bothInKernel(t, ns, node)
		if got := n.session("r").Address; got != router.WithZone("eth0") {
			t.Errorf("the session is with %s", got)
		}
	})
}

// A router on such a link that takes no IPv6 next hop for IPv4 routes (RFC 8950) gets the IPv6 ones only, and all as
// soon as the link has IPv4 addresses.
func TestUnnumberedNoNextHop(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, self, "eth0", ns, "eth0")
		node := linkLocal(t, self)
		n := startUnnumbered(t, routerOn(65000))
		config := strings.NewReplacer("NODE", node.String(), " bfd on;", "", " extended next hop on;",
			"").Replace(birdUnnumbered)
		nstest.StartBIRD(t, ns, config)
		n.until("r", "IPv4 routes are withheld", func(s lb.Session) bool {
			return s.IsEstablished() && s.Advertised == 1 &&
				strings.HasPrefix(s.Withheld, "IPv4 routes are not sent: this node has no IPv4 address on the link")
		})
		inKernel(t, ns, service6, node)
		if got := ns.Output("ip", "-4", "route", "show", service4); got != "" {
			t.Errorf("the router has a route to %s: %s", service4, got)
		}
		since := n.session("r").Since
		ns.AddAddress("eth0", "192.0.2.2/24")
		self.AddAddress("eth0", "192.0.2.1/24")
		inKernel(t, ns, service4, netip.MustParseAddr("192.0.2.1"))
		n.until("r", "nothing is withheld", func(s lb.Session) bool { return s.Withheld == "" && s.Advertised == 2 })
		if s := n.session("r"); !s.Since.Equal(since) {
			t.Errorf("%+v, before up since %v", s, since)
		}
	})
}

// birdAdvertises itself, and speaks no BGP.
const birdAdvertises = `
log stderr all;
router id 192.0.2.3;
protocol device {}
protocol radv { interface "eth0" { max ra interval 4; default lifetime 0; }; }
`

// A router that is not heard, while another one is, keeps its session. When that has ended the other one is taken.
func TestUnnumberedKeepsRouter(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		self, ns, other := nstest.Self(t), nstest.New(t), nstest.New(t)
		nstest.Veth(t, self, "eth0", ns, "a")
		nstest.Veth(t, other, "eth0", ns, "b")
		ns.Bridge("eth0", "a", "b")
		n := startUnnumbered(t, routerOn(4200000000))
		router := startFRR(t, ns, strings.Replace(frrUnnumbered, " neighbor eth0 bfd profile fast\n", "", 1))
		n.until("r", "the session is up", lb.Session.IsEstablished)
		since := n.session("r").Since

		ns.Output("nft", "add table ip6 drowned; add chain ip6 drowned out { type filter hook output priority 0; }; add "+
			"rule ip6 drowned out icmpv6 type "+
			"nd-router-advert drop")
		nstest.StartBIRD(t, other, birdAdvertises)
		nstest.Until(t, patience, "the other router is said", func() bool {
			return strings.HasSuffix(n.finder.Found("eth0").Problem, linkLocal(t, other).String()+"; it should have one")
		})
		began := time.Now()
		nstest.Until(t, 2*patience, "longer than it takes until the silent one is asked in vain", func() bool {
			if s := n.session("r"); !s.IsEstablished() || !s.Since.Equal(since) {
				t.Fatalf("the session ended: %+v", s)
			}
			return time.Since(began) > 35*time.Second
		})

		router.Kill()
		n.until("r", "the session ends with the router", func(s lb.Session) bool { return !s.IsEstablished() })
		nstest.Until(t, 2*patience, "the other router is the link's", func() bool {
			return n.finder.Found("eth0").Address == linkLocal(t, other).WithZone("eth0")
		})
	})
}

// A link that goes, and comes back as another one, is followed without a plan, by events and not by the next look: BFD
// hears the router by that link and by no other, numbered or not. A pod's link is none of them, also of those from
// across routers.
func TestBFDFollowsLinks(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, self, "cali1", nstest.New(t), "eth0")
		var p *Peering
		log := slog.New(slog.NewTextHandler(t.Output(), nil))
		links := link.New(log, func() { p.loop.Hurry() })
		speaker := bgp.New(bgp.Config{Log: log, Kick: func() {}, Command: testEngine})
		p = New(Config{Log: log, BGP: speaker, Links: links.Links, Changed: func() {}})
		var mu sync.Mutex
		var last []bfd.Peer
		ours, theirs := net.Pipe()
		go p.BFD.Serve(ours)
		go func() {
			for in := json.NewDecoder(theirs); ; {
				var order []bfd.Peer
				if in.Decode(&order) != nil {
					return
				}
				mu.Lock()
				last = order
				mu.Unlock()
			}
		}()
		ordered := func(name string) []int {
			mu.Lock()
			defer mu.Unlock()
			for _, p := range last {
				if p.Name == name {
					return p.Links
				}
			}
			return nil
		}
		go func() { _ = links.Run(t.Context()) }()
		go func() { _ = p.loop.Run(t.Context()) }()
		nstest.Until(t, patience, "the links are known", links.Synced)
		profile := &lb.BFD{Transmit: time.Second, Receive: time.Second, Multiplier: 3, MinimumTTL: 254}
		peers := []lb.Peer{
			{Name: "v4", Address: netip.MustParseAddr("192.0.2.2"), LocalASN: 1, PeerASN: 2, BFD: profile},
			{Name: "v6", Address: netip.MustParseAddr("2001:db8::2"), LocalASN: 1, PeerASN: 2, BFD: profile},
			{Name: "far", Address: netip.MustParseAddr("203.0.113.2"), LocalASN: 1, PeerASN: 2, MultiHop: true, BFD: profile},
		}
		p.Set(bgp.Desired{Peers: peers}, nil)
		worst := time.Duration(0)
		follows := func(what string, index ...int) {
			t.Helper()
			began := time.Now()
			nstest.Until(t, patience, what, func() bool {
				far := ordered("far")
				return slices.Equal(ordered("v4"), index) && slices.Equal(ordered("v6"), index) && len(far) == 1+len(index) &&
					!slices.Contains(far, self.Link("cali1").Attrs().Index)
			})
			worst = max(worst, time.Since(began))
		}
		for range 20 {
			nstest.Veth(t, self, "eth0", ns, "eth0")
			self.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64")
			follows("the router is heard by the link", self.Link("eth0").Attrs().Index)
			self.Delete("eth0")
			follows("the router is heard by no link")
		}
		t.Logf("links were followed in %v at worst", worst)
		if worst > time.Second {
			t.Errorf("a link was followed after %v", worst)
		}
	})
}
