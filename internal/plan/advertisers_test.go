package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestAdvertisersOfClass checks that the table of classes gives each Service the advertisers that it gets by itself,
// plan after plan. Services that share an entry must be many enough to show something.
func TestAdvertisersOfClass(t *testing.T) {
	shared, asked := 0, 0
	for seed := range uint64(20) {
		w, m := newTown(t, seed), Memory{}
		for step := range 200 {
			w.step()
			w.Now = w.Now.Add(time.Second)
			p := m.ForNode("w1", w.State)
			w.Here.Advertised = p.Advertised

			c := m.planner.common
			seen := map[*advertisers]bool{}
			for _, s := range withSingleAddresses(w.Services) {
				got, want := c.advertisers(s), byItself(c, s)
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("seed %d, step %d, %v: -by itself +of its class\n%s", seed, step, s.Key, cmp.Diff(want, got, inside...))
				}
				if seen[got] {
					shared++
				}
				seen[got] = true
				asked++
			}
		}
	}
	t.Logf("of %d Services %d shared an entry", asked, shared)
	if shared < asked/5 {
		t.Error("these are too few to show anything")
	}
}

// withSingleAddresses returns Services, and each of them with one of its addresses only.
func withSingleAddresses(services []*lb.Service) []*lb.Service {
	out := slices.Clone(services)
	for _, s := range services {
		for _, a := range s.Addresses {
			one := new(*s)
			one.Addresses = []netip.Addr{a}
			out = append(out, one)
		}
	}
	return out
}

// byItself returns the advertisers of a Service as they would be computed without a table.
func byItself(c *common, s *lb.Service) *advertisers {
	all := make([]eligibility, len(s.Addresses))
	for i, a := range s.Addresses {
		all[i] = c.eligibility(s, a)
	}
	if !slices.ContainsFunc(all, func(e eligibility) bool { return len(e.ads) > 0 }) {
		return &advertisers{}
	}
	return c.newAdvertisers(s, all)
}

// TestAdvertisersBound checks that tenants cannot make the table of classes grow without a bound, and that a Service
// gets its own advertisers although the table was cleared.
func TestAdvertisersBound(t *testing.T) {
	s := base()
	first := s.Services[0]
	s.Services = nil
	for i := range maxRankings + 10 {
		one := new(*first)
		one.Key.Name = fmt.Sprintf("s%05d", i)
		one.NodeSelectors = labelled("name", "w1", fmt.Sprint(i))
		s.Services = append(s.Services, one)
	}

	var m Memory
	p := m.ForNode("w1", s)
	if n := len(m.planner.advertisersOf); n > maxRankings {
		t.Errorf("the table has %d classes, more than %d", n, maxRankings)
	}
	for k, v := range p.Verdicts.All() {
		if !slices.Equal(v.BGP.Nodes, []string{"w1"}) {
			t.Errorf("%v is advertised by %v, want w1", k, v.BGP.Nodes)
		}
	}
}

// BenchmarkDeath plans after the death of one node among 1,000; first is the plan of what the death concerns. L2 is for
// comparison. The other Services are advertised by BGP: with one address; with two; with node selectors and a route
// that covers many addresses; each with node selectors of its own; with externalTrafficPolicy Local.
func BenchmarkDeath(b *testing.B) {
	for _, services := range []int{1000, 10_000} {
		for _, kind := range []string{"L2", "BGP", "DualStack", "Wide", "Selectors", "Local"} {
			b.Run(fmt.Sprintf("%s/%d", kind, services), func(b *testing.B) {
				s, m := largeCluster(services, kind), Memory{}
				m.ForNode("node1", s)
				whole := s.Members
				b.ReportAllocs()
				var first time.Duration
				for i := 0; b.Loop(); i++ {
					s.Members = maps.Clone(whole)
					delete(s.Members, fmt.Sprint("node", 2+i%2))
					start := time.Now()
					m.ForNode("node1", s)
					for first += time.Since(start); m.IsLate(); {
						m.ForNode("node1", s)
					}
				}
				b.ReportMetric(float64(first.Nanoseconds())/float64(b.N), "first-ns/op")
			})
		}
	}
}

// largeCluster returns a State of 1,000 nodes in ten zones, which all have a peer of each family.
func largeCluster(services int, kind string) lb.State {
	s := lb.State{
		Nodes: map[string]lb.Node{}, Members: map[string]bool{}, Links: map[string][]lb.Link{},
		Pools: []lb.Pool{{Name: "p", Ranges: []lb.Range{
			{From: netip.MustParseAddr("10.0.0.0"), To: netip.MustParseAddr("10.0.255.255")},
			{From: netip.MustParseAddr("fd01::"), To: netip.MustParseAddr("fd01::ffff")},
		}}},
		BGPAdvertisements: []lb.BGPAdvertisement{{Name: "bgp", AggregationLength: 32, AggregationLengthV6: 128}},
		Peers: []lb.Peer{
			{Name: "r1v4", Address: netip.MustParseAddr("10.9.9.9")},
			{Name: "r1v6", Address: netip.MustParseAddr("fd00::9")},
		},
	}
	switch kind {
	case "L2":
		s.BGPAdvertisements, s.L2Advertisements = nil, []lb.L2Advertisement{{Name: "l2"}}
	case "Wide":
		s.BGPAdvertisements[0].AggregationLength = 24
	}
	for i := range 1000 {
		name := fmt.Sprint("node", i)
		s.Nodes[name] = lb.Node{Name: name, Labels: map[string]string{"zone": fmt.Sprint(i % 10)}}
		s.Members[name], s.Links[name] = true, links(name, "eth0=10.0.0.0/8")
	}

	a4, a6 := s.Pools[0].Ranges[0].From, s.Pools[0].Ranges[1].From
	for i := range services {
		one := lb.Service{
			Key: lb.Key{Namespace: "ns", Name: fmt.Sprintf("%05d", i)}, Addresses: []netip.Addr{a4},
			Ports:    []lb.Port{{Protocol: "TCP", Port: 80}},
			Backends: servedOn(fmt.Sprint("node", i%1000), fmt.Sprint("node", (i+7)%1000)),
		}
		zone := fmt.Sprint(i % 10)
		switch kind {
		case "DualStack":
			one.Addresses = append(one.Addresses, a6)
		case "Wide":
			one.NodeSelectors = labelled("zone", zone)
		case "Selectors":
			one.NodeSelectors = labelled("zone", zone, fmt.Sprint("tenant", i))
		case "Local":
			one.Local = true
		}
		s.Services = append(s.Services, &one)
		a4, a6 = a4.Next(), a6.Next()
	}
	return s
}
