package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// filterText renders a filter as an operator would read it.
func filterText(f lb.Filter) string {
	var b strings.Builder
	fmt.Fprintf(&b, "guard %v\n", f.Guarded)
	if len(f.Reset) > 0 {
		fmt.Fprintf(&b, "reset %v\n", f.Reset)
	}
	if len(f.Open) > 0 {
		fmt.Fprintf(&b, "open %v\n", f.Open)
	}
	if f.Pings.Len() > 0 {
		fmt.Fprintf(&b, "ping %v\n", slices.Collect(f.Pings.Keys()))
	}
	for d := range f.Each() {
		fmt.Fprintf(&b, "%s %s/%d %s", d.Address, d.Protocol, d.Port, d.Service)
		if d.Restricted {
			fmt.Fprintf(&b, " from %v", d.Allow)
		}
		if len(d.Deny) > 0 {
			fmt.Fprintf(&b, " but %v", d.Deny)
		}
		if d.ClusterIP.IsValid() {
			fmt.Fprintf(&b, " inside by %s", d.ClusterIP)
		}
		if d.ConnectionLimit+d.RateLimit > 0 {
			fmt.Fprintf(&b, " limits %d %d", d.ConnectionLimit, d.RateLimit)
		}
		if d.Refuse {
			b.WriteString(" refused")
		}
		if d.LogDrops {
			b.WriteString(" logged")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestFilter(t *testing.T) {
	const guard = "guard [192.0.2.0-192.0.2.255 2001:db8::-2001:db8::ffff]\n"
	const ping = "ping [192.0.2.10 2001:db8::10]\n"
	open := "192.0.2.10 TCP/80 default/web\n2001:db8::10 TCP/80 default/web\n"
	for _, tt := range []struct {
		name, node string
		change     func(*lb.State)
		want       string
	}{
		{"open Service on its owner", "w1", func(*lb.State) {}, guard + ping + open},
		{"frontends are on every node", "w2", func(*lb.State) {}, guard + ping + open},
		{
			"pings are answered while a speaker starts and knows no other",
			"w1", func(s *lb.State) { s.Members = nil }, guard + ping + open,
		},
		{"no pings without an endpoint", "w1", func(s *lb.State) { s.Services[0].Backends = lb.Backend{} }, guard + open},
		{
			"no pings to the family without an endpoint",
			"w1", func(s *lb.State) { s.Services[0].Backends = backends("4/all=w2") },
			guard + "ping [192.0.2.10]\n" + open,
		},
		{"Local: refused by family and port", "w1", func(s *lb.State) {
			s.Services[0].Local = true
			s.Services[0].Ports = portsOf("80,443")
			s.Services[0].Backends = backends("4/80=w1,w2", "4/443=w1!", "6/all=w2")
		}, guard + "ping [192.0.2.10]\n" + `192.0.2.10 TCP/80 default/web
192.0.2.10 TCP/443 default/web
2001:db8::10 TCP/80 default/web refused
2001:db8::10 TCP/443 default/web refused
`},
		{"Local: a node with one of the ports", "w2", func(s *lb.State) {
			s.Services[0].Local = true
			s.Services[0].Ports = portsOf("80,443")
			s.Services[0].Backends = backends("46/80=w2", "46/443=w1")
		}, guard + ping + `192.0.2.10 TCP/80 default/web
192.0.2.10 TCP/443 default/web refused
2001:db8::10 TCP/80 default/web
2001:db8::10 TCP/443 default/web refused
`},
		{"unknown node", "w9", func(*lb.State) {}, guard + ping + open},
		{"ranges of one family close the other", "w3", func(s *lb.State) {
			s.Services[0].Access = lb.Access{
				Restricted: true, Allow: prefixes("10.0.0.0/8"), Deny: prefixes("10.9.0.0/16"), ConnectionLimit: 5,
				RateLimit: 2, LogDrops: true,
			}
		}, guard + ping + `192.0.2.10 TCP/80 default/web from [10.0.0.0/8] but [10.9.0.0/16] limits 5 2 logged
2001:db8::10 TCP/80 default/web from [] limits 5 2 logged
`},
		{
			"deny alone leaves the others in",
			"w3", func(s *lb.State) { s.Services[0].Access = lb.Access{Deny: prefixes("2001:db8:9::/48")} },
			guard + ping + `192.0.2.10 TCP/80 default/web
2001:db8::10 TCP/80 default/web but [2001:db8:9::/48]
`,
		},
		{"a Service narrows its pool's ranges", "w3", func(s *lb.State) {
			s.Pools[0].Restricted, s.Pools[0].SourceRanges = true, prefixes("10.0.0.0/8", "172.16.0.0/12", "2001:db8:1::/48")
			s.Services[0].Access = lb.Access{
				Restricted: true, Allow: prefixes("10.1.0.0/16", "172.0.0.0/8", "192.0.2.0/24", "::/0"),
			}
		}, guard + ping + `192.0.2.10 TCP/80 default/web from [10.1.0.0/16 172.16.0.0/12]
2001:db8::10 TCP/80 default/web from [2001:db8:1::/48]
`},
		{"the pool's ranges are the default", "w3", func(s *lb.State) {
			s.Pools[0].Restricted = true
			s.Pools[0].SourceRanges = prefixes("10.0.0.0/8")
		},
			guard + ping + `192.0.2.10 TCP/80 default/web from [10.0.0.0/8]
2001:db8::10 TCP/80 default/web from []
`},
		{"a pool without a readable range closes", "w3", func(s *lb.State) {
			s.Pools[0].Restricted = true
			s.Services[0].ClusterIPs = nil
		}, guard + ping + "192.0.2.10 TCP/80 default/web from []\n2001:db8::10 TCP/80 default/web from []\n"},
		{"the pool's ranges go with an address that was cut from it", "w3", func(s *lb.State) {
			s.Pools[0].Restricted, s.Pools[0].SourceRanges, s.Pools[0].Reset = true, prefixes("10.0.0.0/8"), true
			s.Pools[0].Ranges = s.Pools[0].Ranges[1:]
			s.Services[0].Record = lb.Origins{{Address: v4, Pool: "lan"}}
		}, `guard [2001:db8::-2001:db8::ffff]
reset [192.0.2.10 2001:db8::-2001:db8::ffff]
ping [192.0.2.10 2001:db8::10]
192.0.2.10 TCP/80 default/web from [10.0.0.0/8]
2001:db8::10 TCP/80 default/web from []
`},
		{"a pool leaves undeclared ports alone, but for a Service with ports beyond the bound", "w3", func(s *lb.State) {
			s.Pools[0].Open, s.Pools[0].Ranges = true, s.Pools[0].Ranges[1:]
			s.Services[0].Record = lb.Origins{{Address: v4, Pool: "lan"}}
			bounded := new(*s.Services[0])
			bounded.Key.Name, bounded.Addresses = "z", []netip.Addr{netip.MustParseAddr("2001:db8::20")}
			bounded.Unserved = []lb.Port{{Protocol: "TCP", Port: 9}}
			s.Services = append(s.Services, bounded)
		}, `guard [2001:db8::-2001:db8::ffff]
open [192.0.2.10 2001:db8::-2001:db8::1f 2001:db8::21-2001:db8::ffff]
ping [192.0.2.10 2001:db8::10 2001:db8::20]
192.0.2.10 TCP/80 default/web
2001:db8::10 TCP/80 default/web
2001:db8::20 TCP/80 default/z
`},
		{"the cluster's own traffic is let in where there are ranges", "w3", func(s *lb.State) {
			s.Services[0].Access = lb.Access{InternalAllowed: true, Deny: prefixes("2001:db8:9::/48")}
		}, guard + ping + `192.0.2.10 TCP/80 default/web
2001:db8::10 TCP/80 default/web but [2001:db8:9::/48] inside by fd00:96::7
`},
		{"internalTrafficPolicy Local", "w3", func(s *lb.State) {
			s.Services[0].InternalLocal = true
			s.Services[0].Access = lb.Access{InternalAllowed: true, Restricted: true, Allow: prefixes("::/0")}
		}, guard + ping + "192.0.2.10 TCP/80 default/web from []\n2001:db8::10 TCP/80 default/web from [::/0]\n"},
		{"Local without an endpoint here", "w1", func(s *lb.State) { s.Services[0].Local = true },
			guard + "192.0.2.10 TCP/80 default/web refused\n2001:db8::10 TCP/80 default/web refused\n"},
		{"Local with an endpoint here", "w2", func(s *lb.State) { s.Services[0].Local = true },
			guard + ping + open},
		{"Services that share an address", "w3", func(s *lb.State) {
			s.Services[0].Ports = append(s.Services[0].Ports, lb.Port{Protocol: "UDP", Port: 80})
			other := new(*s.Services[0])
			other.Key.Name, other.Addresses = "mail", []netip.Addr{v4}
			other.Ports = []lb.Port{{Protocol: "SCTP", Port: 80}, {Protocol: "TCP", Port: 25}}
			other.Access = lb.Access{Restricted: true, Allow: prefixes("10.0.0.0/8")}
			s.Services = append([]*lb.Service{other}, s.Services...)
		}, guard + ping + `192.0.2.10 SCTP/80 default/mail from [10.0.0.0/8]
192.0.2.10 TCP/25 default/mail from [10.0.0.0/8]
192.0.2.10 TCP/80 default/web
192.0.2.10 UDP/80 default/web
2001:db8::10 TCP/80 default/web
2001:db8::10 UDP/80 default/web
`},
		{"a port that two claim has the terms of both", "w3", func(s *lb.State) {
			s.Services[0].Addresses = s.Services[0].Addresses[:1]
			s.Services[0].Access = lb.Access{
				Restricted: true, Allow: prefixes("10.0.0.0/8"), Deny: prefixes("10.2.0.0/16"), RateLimit: 5,
				ConnectionLimit: 7,
			}
			thief := new(*s.Services[0])
			thief.Key.Name = "z"
			thief.Access = lb.Access{
				Restricted: true, Allow: prefixes("10.0.0.0/9", "192.0.2.0/24"),
				Deny: prefixes("10.2.3.0/24", "10.9.0.0/16"), RateLimit: 3,
			}
			s.Services = append(s.Services, thief)
		},
			guard + "ping [192.0.2.10]\n192.0.2.10 TCP/80 default/web from [10.0.0.0/9] but [10.2.0.0/16 " +
				"10.9.0.0/16] limits 7 3\n"},
		{"what others have is theirs", "w3", func(s *lb.State) {
			s.Services = nil
			s.Reserved = map[netip.Addr]lb.Key{netip.MustParseAddr("192.0.2.0"): {}, netip.MustParseAddr("192.0.2.255"): {}}
			s.Here.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::ffff")}
			s.Nodes["w1"] = lb.Node{Name: "w1", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.8")}}
		}, "guard [192.0.2.1-192.0.2.6 192.0.2.8-192.0.2.254 2001:db8::-2001:db8::fffe]\n"},
		{"an address on the node's own link is never closed", "w3", func(s *lb.State) { s.Here.Addresses = []netip.Addr{v4} },
			"guard [192.0.2.0-192.0.2.9 192.0.2.11-192.0.2.255 2001:db8::-2001:db8::ffff]\nping [2001:db8::10]\n" +
				"2001:db8::10 TCP/80 default/web\n"},
		{"an address that a Node lists is closed like any other", "w3", func(s *lb.State) {
			s.Nodes["w9"] = lb.Node{Name: "w9", Addresses: []netip.Addr{v4}}
			s.Nodes["w3"] = lb.Node{Name: "w3", Addresses: []netip.Addr{v6}}
		}, guard + ping + open},
		{"who goes is filtered for as long as its status shows an address", "w3", func(s *lb.State) {
			gone := new(*s.Services[0])
			gone.Addresses = gone.Addresses[:1]
			gone.Access = lb.Access{Restricted: true, Allow: prefixes("10.0.0.0/8"), Deny: prefixes("10.9.0.0/16")}
			s.Services = nil
			s.Leaving = []lb.Leaving{{Addresses: []netip.Addr{v4, v6}, Served: gone}}
		}, guard + "192.0.2.10 TCP/80 default/web from [10.0.0.0/8] but [10.9.0.0/16]\n"},
		{"who goes is closed", "w3", func(s *lb.State) {
			s.Services = nil
			s.Leaving = []lb.Leaving{{Addresses: []netip.Addr{v4, netip.MustParseAddr("198.51.100.1")}}}
		}, "guard [192.0.2.0-192.0.2.255 198.51.100.1 2001:db8::-2001:db8::ffff]\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := base()
			tt.change(&s)
			if diff := cmp.Diff(tt.want, filterText(ForNode(tt.node, s).Filter)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// randomPrefixes returns prefixes as config does: ordered, none within another.
func randomPrefixes(r *rand.Rand, n int) []netip.Prefix {
	var all []netip.Prefix
	for range r.IntN(n + 1) {
		all = append(all, netip.PrefixFrom(randomAddr(r), 24+r.IntN(9)).Masked())
	}
	return lb.Outermost(all)
}

// randomAddr returns one of few addresses, so that some are equal.
func randomAddr(r *rand.Rand) netip.Addr {
	return netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(256))})
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// TestFilterProperties compares the filters of random States with the terms of their Services and pools.
func TestFilterProperties(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 6))
		s := lb.State{Reserved: map[netip.Addr]lb.Key{}, Nodes: map[string]lb.Node{"w1": {Name: "w1"}}}
		for i := range 3 {
			from := netip.AddrFrom4([4]byte{192, 0, 2, byte(i*80 + r.IntN(40))})
			to := netip.AddrFrom4([4]byte{192, 0, 2, from.As4()[3] + byte(r.IntN(40))})
			s.Pools = append(s.Pools, lb.Pool{Name: fmt.Sprint(i), Ranges: []lb.Range{{From: from, To: to}},
				PoolTerms: lb.PoolTerms{Restricted: r.IntN(2) == 0, SourceRanges: randomPrefixes(r, 3)}})
		}
		for i := range r.IntN(6) {
			s.Services = append(s.Services, &lb.Service{Key: lb.Key{Name: fmt.Sprint(i)}, Addresses: []netip.Addr{randomAddr(r)},
				Ports:  []lb.Port{{Protocol: "TCP", Port: uint16(r.IntN(2))}, {Protocol: "UDP", Port: 1}},
				Access: lb.Access{Restricted: r.IntN(2) == 0, Allow: randomPrefixes(r, 4), Deny: randomPrefixes(r, 2)}})
		}
		for range r.IntN(4) {
			s.Reserved[randomAddr(r)] = lb.Key{}
			s.Here.Addresses = append(s.Here.Addresses, randomAddr(r))
		}
		checkFilter(t, r, s, ForNode("w1", s).Filter)
		if t.Failed() {
			t.Fatalf("seed %d: %+v", seed, s)
		}
	}
}

func checkFilter(t *testing.T, r *rand.Rand, s lb.State, f lb.Filter) {
	t.Helper()
	for i := 1; i < len(f.Guarded); i++ {
		if !f.Guarded[i-1].To.Next().Less(f.Guarded[i].From) {
			t.Errorf("ranges %v are not disjoint and ordered", f.Guarded)
		}
	}
	for i := range 256 {
		a := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		in := func(ranges []lb.Range) bool {
			return slices.ContainsFunc(ranges, func(r lb.Range) bool { return r.Contains(a) })
		}
		_, reserved := s.Reserved[a]
		pooled := slices.ContainsFunc(s.Pools, func(p lb.Pool) bool { return in(p.Ranges) })
		if want := pooled && !reserved && !slices.Contains(s.Here.Addresses, a); in(f.Guarded) != want {
			t.Errorf("%s is guarded: %v, want %v", a, !want, want)
		}
	}
	all := slices.Collect(f.Each())
	unique := slices.CompactFunc(slices.Clone(all), func(a, b *lb.Frontend) bool { return compareFrontends(a, b) == 0 })
	if !slices.IsSortedFunc(all, compareFrontends) || len(all) != len(unique) {
		t.Errorf("frontends %v are not ordered and unique", all)
	}
	index := newPoolIndex(s.Pools)
	for _, d := range all {
		for range 20 {
			from, want := randomAddr(r), true
			for i := range s.Services {
				sv := s.Services[i]
				if sv.Addresses[0] != d.Address || !slices.Contains(sv.Ports, lb.Port{Protocol: d.Protocol, Port: d.Port}) {
					continue
				}
				pool := index.pool(sv, d.Address)
				want = want && (!sv.Restricted || contains(sv.Allow, from)) && !contains(sv.Deny, from) &&
					(pool == nil || !pool.Restricted || contains(pool.SourceRanges, from))
			}
			if got := (!d.Restricted || contains(d.Allow, from)) && !contains(d.Deny, from); got != want {
				t.Errorf("%s comes in to %+v: %v, want %v", from, d, got, want)
			}
		}
	}
}
