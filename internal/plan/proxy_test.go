package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

func init() {
	// proxied: proxies on these nodes serve web, whose policy is Cluster by its spec.
	orders["proxied"] = func(s *lb.State, args []string) {
		web := s.Services[0]
		web.Proxied = true
		web.Proxy = &lb.Proxy{}
		web.Local = true
		web.Backends = lb.Backend{}
		if len(args) > 0 {
			web.Backends = servedOn(args...)
		}
		web.Ports = []lb.Port{{Protocol: "TCP", Port: 80, NodePort: 30080}}
		for _, name := range args {
			addProxy(s, name, "")
		}
	}
	orders["second"] = func(s *lb.State, args []string) { addProxy(s, args[0], "-2") }
	orders["asks"] = func(s *lb.State, _ []string) { s.Services[0].Proxied, s.Services[0].Local = false, false }
	orders["refusedproxy"] = func(s *lb.State, _ []string) { s.Services[0].ProxyRefused = true }
	// serves: the proxies of w1 say that they listen for ports of web: 80=30080.
	orders["serves"] = func(s *lb.State, args []string) {
		frontends := map[lb.Key]map[uint16]uint16{}
		for _, text := range args {
			var of, at uint16
			if _, err := fmt.Sscanf(text, "%d=%d", &of, &at); err != nil {
				panic(err)
			}
			frontends[s.Services[0].Key] = map[uint16]uint16{of: at}
		}
		for i := range s.ProxyPods {
			if s.ProxyPods[i].Node == "w1" {
				s.ProxyPods[i].Frontends = frontends
			}
		}
	}
	// more: web has a port more.
	orders["more"] = func(s *lb.State, _ []string) {
		web := s.Services[0]
		web.Ports = append(slices.Clone(web.Ports), lb.Port{Protocol: "TCP", Port: 443, NodePort: 30443})
	}
	// lacks: these nodes say that their proxies do not serve the namespace of web.
	orders["lacks"] = func(s *lb.State, args []string) {
		s.LacksProxy = map[string][]uint32{}
		for _, name := range args {
			s.LacksProxy[name] = []uint32{lb.NamespaceHash(s.Services[0].Key.Namespace)}
		}
	}
	// ends: the proxies of these nodes terminate.
	orders["ends"] = func(s *lb.State, args []string) {
		for _, name := range args {
			s.Services[0].Backends = s.Services[0].Backends.WithoutNode(name)
			for i := range s.ProxyPods {
				s.ProxyPods[i].Ready = s.ProxyPods[i].Ready && s.ProxyPods[i].Node != name
			}
		}
	}
	orders["only4"] = func(s *lb.State, _ []string) {
		for i := range s.ProxyPods {
			s.ProxyPods[i].Addresses = s.ProxyPods[i].Addresses[:1]
		}
	}
	orders["internal"] = func(s *lb.State, _ []string) { s.Services[0].InternalAllowed = true }
	orders["leaves"] = func(s *lb.State, _ []string) {
		s.Leaving = []lb.Leaving{{Key: s.Services[0].Key, Addresses: s.Services[0].Addresses, Served: s.Services[0]}}
		s.Services = s.Services[:0]
	}
	// to: where IPv4 and IPv6 of web lead from w1; a pod on another node is marked.
	facts["to"] = func(_ lb.State, p Plan) string {
		var out []string
		for _, d := range p.Diversions {
			far := map[bool]string{true: " far"}[d.Remote]
			out = append(out, fmt.Sprintf("%s:%d %s%s", d.Address, d.Port, d.To, far))
		}
		return strings.Join(out, ", ")
	}
	facts["nodeports"] = func(_ lb.State, p Plan) string { return fmt.Sprint(p.ClosedNodePorts) }
	facts["reports"] = func(_ lb.State, p Plan) string { return fmt.Sprint(p.Proxied) }
	// lets: what w1 does with connections to each address from outside and from inside.
	facts["lets"] = func(_ lb.State, p Plan) string {
		var out []string
		for f := range p.Filter.Each() {
			text := map[bool]string{true: "refused", false: "in"}[f.Refuse]
			if f.Inside {
				text += " or inside"
			}
			if f.ClusterIP.IsValid() {
				text += " past the proxy"
			}
			out = append(out, text)
		}
		return strings.Join(out, ", ")
	}
}

func addProxy(s *lb.State, node, suffix string) {
	i := int(node[1]-'0') + 10*len(suffix)
	s.ProxyPods = append(s.ProxyPods,
		lb.ProxyPod{Name: "proxy-" + node + suffix, Node: node, Ready: true, Addresses: []netip.Addr{
			netip.MustParseAddr(fmt.Sprintf("10.244.%d.2", i)), netip.MustParseAddr(fmt.Sprintf("fd00:%d::2", i)),
		}})
}

// proxyTables are of proxied Services. w1 owns web by the hash, if it may.
var proxyTables = []struct {
	about, first string
	rows         []row
}{
	{"served by the proxy of w1", "proxied w1 w2", []row{
		{
			"it announces, and leads to its own",
			"",
			webRoutes + "; own w1, w1; route w1 w2; here Announced Announced; lets in, in; " +
				"nodeports [30080]; reports [default/web]; " +
				"to 192.0.2.10:80 10.244.1.2:30080, 2001:db8::10:80 [fd00:1::2]:30080", nil,
		},
		{"once that says so", "serves 80=30080", "own w1, w1; reports [default/web]; lets in, in", nil},
		{"a port that the proxy has yet to get is refused, and moves nothing", "serves 80=30080; more", "own w1, w1; " +
			"lets in, refused, in, refused; reports []; here Announced Announced; nodeports [30080 30443]; " +
			"to 192.0.2.10:80 10.244.1.2:30080, 2001:db8::10:80 [fd00:1::2]:30080", nil},
		{
			"of several the same one always",
			"second w1", "to 192.0.2.10:80 10.244.1.2:30080, 2001:db8::10:80 [fd00:1::2]:30080", nil,
		},
		{"an address on its own link is left alone", "onlink", "to 2001:db8::10:80 [fd00:1::2]:30080; lets in", nil},
		{"lists", "ranged", "lets in, in", nil},
		{"lists that are not for the cluster itself", "ranged; internal", "lets in or inside, in or inside", nil},
		{"nothing to lift", "internal", "lets in, in", nil},
	}},
	{"not served by the proxy of w1", "proxied w1 w2", []row{
		{
			"it says nothing yet",
			"serves",
			"own -, -; route w2; here NoProxy NoProxy; l2 NoProxy -; bgp Announced w2; lets refused, refused; " +
				"reports []; nodeports [30080]; " +
				"to 192.0.2.10:80 10.244.2.2:30080 far, 2001:db8::10:80 [fd00:2::2]:30080 far; " +
				"says node w1 withholds the addresses, for the proxy there does not serve the Service yet: " +
				"look at the log of its agent; writers w1, w1",
			nil,
		},
		{
			"all nodes know that",
			"serves; lacks w1", "owner w2; own w2, w2; route w2; here NoProxy NoProxy; lets refused, refused", nil,
		},
		{
			"as all others do not",
			"serves; lacks w1 w2", "owner w1; own -, -; here NoProxy NoProxy; says node w1 withholds", nil,
		},
		{
			"it listens elsewhere",
			"serves 80=30081", "own -, -; route w2; here NoProxy NoProxy; reports []; says node w1 withholds", nil,
		},
		{
			"it serves another port",
			"serves 81=30080", "own -, -; route w2; here NoProxy NoProxy; reports []; says node w1 withholds", nil,
		},
		{
			"the former owner goes on meanwhile",
			"serves; previous w2",
			"owner w2; w1 announces 0, yields 0, routes 0; here NoProxy NoProxy; says node w1 withholds", nil,
		},
		{
			"but not without a proxy of its own",
			"serves; previous w3",
			"owner w1; w1 announces 0, yields 0, routes 0; here NoProxy NoProxy; says node w1 withholds", nil,
		},
		{
			"it has no address of a family",
			"only4",
			"own w1, -; lets in, refused; to 192.0.2.10:80 10.244.1.2:30080; reports []; " +
				"here NoProxy NoProxy; says node w1 withholds", nil,
		},
		{
			"another Service on the address is served",
			"serves; twin w1 w2",
			"own w1, w1; here NoProxy NoProxy; lets refused, in, refused, in; says node w1 withholds",
			func(s *lb.State) {
				other := s.Services[1]
				other.Ports = []lb.Port{{Protocol: "TCP", Port: 81, NodePort: 30081}}
				s.ProxyPods[0].Frontends = map[lb.Key]map[uint16]uint16{other.Key: {81: 30081}}
			},
		},
	}},
	{"its proxy terminates", "proxied w1 w2; previous w1", []row{
		{
			"it serves what comes until the next owner is heard",
			"ends w1",
			"owner w2; w1 announces 0, yields 2, routes 0; route w2; " +
				"here NoProxy NoProxy; lets in, in; reports []; " +
				"to 192.0.2.10:80 10.244.1.2:30080, 2001:db8::10:80 [fd00:1::2]:30080", nil,
		},
		{
			"and no longer once it does not",
			"ends w1; serves", "w1 announces 0, yields 0, routes 0; lets refused, refused", nil,
		},
		{"a pod that stays is preferred", "second w1; ends w1; " +
			"serves 80=30080", "to 192.0.2.10:80 10.244.21.2:30080, 2001:db8::10:80 [fd00:21::2]:30080", func(s *lb.State) {
			s.ProxyPods[2].Ready = true
		}},
	}},
	{"no proxy on w1", "proxied w2 w3", []row{
		{
			"it refuses what comes from outside, and leads its own elsewhere",
			"",
			"own w2, w2; route w2 w3; here NoProxy NoProxy; " +
				"lets refused, refused; reports []; nodeports [30080]; " +
				"to 192.0.2.10:80 10.244.3.2:30080 far, 2001:db8::10:80 [fd00:3::2]:30080 far", nil,
		},
		{
			"not to a dead node",
			"dead w3", "to 192.0.2.10:80 10.244.2.2:30080 far, 2001:db8::10:80 [fd00:2::2]:30080 far", nil,
		},
		{
			"nor to a proxy that ends",
			"ends w3", "to 192.0.2.10:80 10.244.2.2:30080 far, 2001:db8::10:80 [fd00:2::2]:30080 far", nil,
		},
		{
			"but rather there than nowhere",
			"dead w2 w3", "to 192.0.2.10:80 10.244.3.2:30080 far, 2001:db8::10:80 [fd00:3::2]:30080 far", nil,
		},
		{"lists that are not for the cluster itself", "ranged; internal", "lets refused or inside, refused or inside", nil},
	}},
	{"no proxy where it should be", "", []row{
		{
			"none at all",
			"proxied",
			"own -, -; route -; l2 NoProxy -; bgp NoProxy -; here NoProxy NoProxy; to ; nodeports [30080]; " +
				"lets refused, refused; " +
				"says no proxy is ready, so that no node may announce the addresses: look at the pods of the " +
				"Deployment of the proxies",
			nil,
		},
		{"all terminate", "proxied w2; ends w2", "l2 NoProxy -; bgp NoProxy -; says no proxy is ready", nil},
		{"where no node announces", "proxied w2 w3; nodes w1", "own -, -; route -; l2 NoProxy -; bgp NoProxy -; " +
			"says proxies run on w2, w3; says the address may be announced from w1; " +
			"bgpsays the address may be announced from w1", nil},
		{
			"where no node may announce at all",
			"proxied w2; nodes none", "l2 NoEligibleNode -; says NodeNotSelected: w1, w2, w3", nil,
		},
	}},
	{"asks", "proxied w1 w2; asks", []row{
		{
			"as before, and its proxies are reported",
			"",
			webRoutes + "; own w1, w1; lets in, in; to ; nodeports []; reports [default/web]; " +
				"here Announced Announced", nil,
		},
		{"if they serve", "serves", "own w1, w1; lets in, in; reports []", nil},
		{"and before it has an address", "noaddress", "reports [default/web]", nil},
		{"a pod that terminates does not count", "ends w1", "reports []", nil},
		{"the cluster's own traffic", "ranged; internal", "lets in past the proxy, in past the proxy", nil},
		{
			"and may not have any",
			"refusedproxy",
			"own -, -; route -; l2 ProxyRefused -; bgp ProxyRefused -; here ProxyRefused ProxyRefused; " +
				"lets refused, refused; " +
				"says its condition holdfast.dev/Proxied says why", nil,
		},
		{
			"another on the address may",
			"refusedproxy; twin w1",
			"own w1, w1; route w1 w2 w3; l2 ProxyRefused -; lets refused, in, refused, in; " +
				"says condition holdfast.dev/Proxied", func(s *lb.State) {
				s.Services[1].Ports, s.Services[1].ProxyRefused = []lb.Port{{Protocol: "TCP", Port: 81}}, false
			},
		},
		{
			"and where that may be announced is no matter then",
			"refusedproxy; twin w1; nodes w2", "own w1, w1; says holdfast.dev/Proxied", func(s *lb.State) {
				s.Services[1].ProxyRefused = false
			},
		},
	}},
	{"leaves", "proxied w1; neighbour; leaves", []row{
		{"its ways stay, and its node ports are closed", "", "lets in, in; nodeports [30080]; reports []; " +
			"to 192.0.2.10:80 10.244.1.2:30080, 2001:db8::10:80 [fd00:1::2]:30080", nil},
	}},
}

// TestEntering: a way to a proxy that ends stays beside the new ones, unless a new one has its frontend.
func TestEntering(t *testing.T) {
	to := func(address string, port uint16, proxy string) lb.Diversion {
		return lb.Diversion{Address: netip.MustParseAddr(address), Port: port, To: netip.MustParseAddrPort(proxy)}
	}
	remote := func(d lb.Diversion) lb.Diversion { d.Remote = true; return d }
	last := Plan{Diversions: []lb.Diversion{
		to("192.0.2.1", 80, "10.0.0.1:30080"), to("192.0.2.2", 80, "10.0.0.1:30081"), to("192.0.2.3", 80, "10.0.0.1:30083"),
		remote(to("192.0.2.4", 80, "10.0.9.1:30084")),
	}}
	next := Plan{Diversions: []lb.Diversion{
		to("192.0.2.1", 80, "10.0.0.2:30080"), remote(to("192.0.2.3", 80, "10.0.9.1:30083")),
		to("192.0.2.4", 80, "10.0.0.2:30084"), remote(to("192.0.2.5", 80, "10.0.9.1:30085")),
		to("2001:db8::1", 80, "[fd00::1]:30082"),
	}}
	for filtered, want := range map[bool][]lb.Diversion{
		true: {
			next.Diversions[0], last.Diversions[1], next.Diversions[1], next.Diversions[2], next.Diversions[3],
			next.Diversions[4],
		},
		// What comes from outside is not yet kept from a proxy of another node.
		false: {next.Diversions[0], last.Diversions[1], last.Diversions[2], next.Diversions[2], next.Diversions[4]},
	} {
		if got := next.Entering(last, filtered); !slices.Equal(got, want) {
			t.Errorf("filtered %v: got %v, want %v", filtered, got, want)
		}
		if got := next.Entering(next, filtered); !slices.Equal(got, next.Diversions) {
			t.Errorf("filtered %v: nothing changed, got %v", filtered, got)
		}
	}
}
