package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestOneOwner: with any links, drains, hold-downs, preferences and sharing, all living nodes agree on at most one
// owner, each condition of each Service has exactly one writer, and the death of a node moves only its own addresses.
//
// Traps: an address on two nodes (kube-vip #947, #1413; Cilium #48456, #48419); a dead node stays the owner until its
// Node object is deleted (Calico 3.34).
func TestOneOwner(t *testing.T) {
	for seed := range uint64(400) {
		s := randomState(seed)
		before := allOwners(t, s)
		delete(s.Members, "n2")
		after := allOwners(t, s)
		for a, was := range before {
			if strings.Contains(was, " ") {
				t.Errorf("seed %d: %s is owned by %s", seed, a, was)
			}
			if was != "n2" && after[a] != was || after[a] == "n2" {
				t.Errorf("seed %d: %s moved from %q to %q when n2 died", seed, a, was, after[a])
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// allOwners returns the nodes that announce each address by their own plans. It fails unless one living node writes
// each condition, and all agree on the owners.
func allOwners(t *testing.T, s lb.State) map[netip.Addr]string {
	t.Helper()
	out, writers := map[netip.Addr]string{}, map[string]string{}
	var agreed map[netip.Addr]string
	for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
		p := ForNode(name, s)
		for _, one := range p.Announcements.All() {
			out[one.Address] = strings.TrimSpace(out[one.Address] + " " + name)
		}
		for _, v := range p.Verdicts.All() {
			for kind, o := range map[string]Outcome{"l2 ": v.L2, "bgp ": v.BGP} {
				if o.Writer {
					writers[kind+v.Service.String()] += name
				}
			}
		}
		seen := maps.Collect(p.Owners.All())
		if agreed != nil && !maps.Equal(agreed, seen) {
			t.Errorf("%s sees %v, others %v", name, seen, agreed)
		}
		agreed = seen
	}
	for what, who := range writers {
		if !s.Members[who] {
			t.Errorf("%s is written by %q", what, who)
		}
	}
	if len(writers) != 2*len(s.Services) {
		t.Errorf("%d of %d conditions have a writer", len(writers), 2*len(s.Services))
	}
	return out
}

func randomState(seed uint64) lb.State {
	r := func(n uint64) bool { seed = score(seed, 7); return seed%n == 0 }
	s := lb.State{
		Nodes: map[string]lb.Node{}, Members: map[string]bool{}, Links: map[string][]lb.Link{},
		Stopping: map[string]bool{}, HeldDown: map[string]bool{}, Unfit: map[string]lb.Unfit{}, Pools: base().Pools,
	}
	for i := range 6 {
		name := fmt.Sprint("n", i)
		s.Nodes[name] = lb.Node{
			Name: name, Draining: r(3), Excluded: r(5), Labels: map[string]string{"even": fmt.Sprint(i%2 == 0)},
		}
		s.Members[name], s.HeldDown[name], s.Stopping[name] = true, r(4), r(4)
		switch {
		case r(4):
		case r(3):
			s.Links[name] = links(name, "eth0=lan4")
		case r(3):
			s.Links[name] = links(name, "eth1=192.0.2.0/25,2001:db8::/64")
		default:
			s.Links[name] = links(name, "eth0=lan")
		}
		for j := range s.Links[name] {
			s.Links[name][j].Refused = r(5)
		}
		if r(4) {
			s.Unfit[name] |= lb.Booting
		}
		if r(3) {
			s.Unfit[name] |= lb.Unfiltered
		}
	}
	s.L2Advertisements = []lb.L2Advertisement{{Name: "all"}, {
		Name: "some", Scope: lb.Scope{ServiceSelectors: labelled("app", "a")}, Links: []string{"eth1"},
		Preferred: []lb.Preference{{Weight: 5, Selector: labelled("even", "true")[0]}},
	}}
	if r(3) {
		s.L2Advertisements[0].Scope = lb.Scope{
			ServiceSelectors: labelled("app", ""), NodeSelectors: labelled("even", "false"),
		}
	}
	for i := range 8 {
		sv := lb.Service{Key: lb.Key{Name: fmt.Sprint("s", i)}, Addresses: []netip.Addr{v4, v6}[seed%2:]}
		if !r(5) {
			sv.Backends = servedOn()
		}
		if r(3) {
			sv.Addresses = [][]netip.Addr{{v6, v4}, {v4}}[seed%2]
		}
		if sv.Labels = map[string]string{"app": ""}; r(2) {
			sv.Labels["app"] = "a"
		}
		if r(3) {
			sv.NodeSelectors = labelled("even", "true")
		}
		if r(4) {
			sv.Key.Namespace = "other"
		}
		sv.Restricted = r(3)
		if r(2) {
			// An address that no other Service shares.
			sv.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)})}
		}
		s.Services = append(s.Services, &sv)
	}
	return s
}

// TestUnfitAgreed: in any state the owners are those that there would be without the nodes and the links that cannot do
// their job.
func TestUnfitAgreed(t *testing.T) {
	for seed := range uint64(300) {
		s := randomState(seed)
		fit := s
		fit.Members, fit.Links, fit.Unfit = maps.Clone(s.Members), map[string][]lb.Link{}, nil
		for name, u := range s.Unfit {
			if u.Has(lb.Booting) {
				delete(fit.Members, name)
			}
		}
		for name, links := range s.Links {
			fit.Links[name] = slices.DeleteFunc(slices.Clone(links), func(l lb.Link) bool { return l.Refused })
		}
		open := ForNode("n0", fit).Owners
		for name, u := range s.Unfit {
			if u.Has(lb.Unfiltered) {
				delete(fit.Members, name)
			}
		}
		closed, want := ForNode("n0", fit).Owners, map[string]string{}
		for _, sv := range s.Services {
			for _, a := range sv.Addresses {
				owner := open.Of(a)
				restricted := slices.ContainsFunc(s.Services,
					func(o *lb.Service) bool { return o.HasRanges() && slices.Contains(o.Addresses, a) })
				if restricted {
					owner = closed.Of(a)
				}
				if owner != "" {
					want[a.String()] = owner
				}
			}
		}
		got := map[string]string{}
		for a, owner := range ForNode("n0", s).Owners.All() {
			got[a.String()] = owner
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("seed %d: without those that cannot -, with them +\n%s", seed, diff)
		}
	}
}

// TestSharerOfAnotherNamespace: whatever a tenant writes on a Service that shares another's address, the owner of the
// address stays, and the other Service stays announced. His own is announced where that node suits it.
func TestSharerOfAnotherNamespace(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*lb.Service)
		own  lb.Reason
	}{
		{"nothing", func(*lb.Service) {}, lb.Announced},
		{"no node", func(s *lb.Service) { s.NodeSelectors = []lb.Selector{{{Operator: lb.In}}} }, lb.NoEligibleNode},
		{
			"a lower address",
			func(s *lb.Service) { s.Addresses = append(s.Addresses, netip.MustParseAddr("192.0.2.1")) }, lb.Announced,
		},
		{"no endpoint", func(s *lb.Service) { s.Backends = lb.Backend{} }, lb.NoServingEndpoint},
	} {
		for i := range 16 { // many addresses, so that the hash cannot hide a fault
			a := netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)})
			s := base()
			s.Services[0].Addresses = []netip.Addr{a}
			want := owners(s, a)
			evil := twin(&s, "evil")
			evil.Key.Namespace, evil.Created = "a", evil.Created.Add(time.Second)
			tt.edit(evil)
			if got := owners(s, a); got != want {
				t.Errorf("%s: %s is owned by %v, without the other tenant by %v", tt.name, a, got, want)
			}
			verdicts := ForNode("w1", s).Verdicts
			first, second := verdicts.Of(s.Services[0].Key).L2.Reason, verdicts.Of(evil.Key).L2.Reason
			if first != lb.Announced || second != tt.own {
				t.Errorf("%s: the Services are %s and %s", tt.name, first, second)
			}
		}
	}
}

// TestSpread: addresses are spread over all nodes.
func TestSpread(t *testing.T) {
	s := base()
	web := s.Services[0]
	s.Services = nil
	count, a := map[string]int{}, netip.MustParseAddr("192.0.2.0")
	for i := range 250 {
		s.Services = append(s.Services, new(*web))
		s.Services[i].Key.Name, s.Services[i].Addresses, a = fmt.Sprint("web", i), []netip.Addr{a}, a.Next()
	}
	for _, v := range ForNode("w1", s).Verdicts.All() {
		count[v.L2.Nodes[0]]++
	}
	for name, n := range count {
		if n < 50 || n > 120 {
			t.Errorf("%s owns %d of 250 addresses: not spread", name, n)
		}
	}
}

// TestCandidates: of many nodes a Service's own endpoints and node selectors choose, whichever other Services there
// are: as if there were no other Service, and only the speakers of the nodes that it lets announce.
func TestCandidates(t *testing.T) {
	const nodes = 40
	random := rand.New(rand.NewPCG(1, 2))
	s := lb.State{
		Nodes: map[string]lb.Node{}, Members: map[string]bool{}, L2Advertisements: []lb.L2Advertisement{{Name: "l2"}},
	}
	for i := range nodes {
		name := fmt.Sprint("node", i)
		s.Nodes[name], s.Members[name] = lb.Node{Name: name, Labels: map[string]string{"zone": fmt.Sprint(i % 4)}}, true
	}
	from := netip.MustParseAddr("192.0.2.0")
	s.Pools = []lb.Pool{{Name: "p", Ranges: []lb.Range{{From: from, To: netip.MustParseAddr("192.0.3.255")}}}}
	for i := range 400 {
		sv := lb.Service{
			Key: lb.Key{Namespace: "ns", Name: fmt.Sprint(i)}, Addresses: []netip.Addr{from}, Backends: servedOn(),
			Ports: []lb.Port{{Protocol: "TCP", Port: 80}},
		}
		if random.IntN(2) == 0 {
			sv.Local = true
			for range 1 + random.IntN(7) {
				sv.Backends.Nodes = sv.Backends.Nodes.With(fmt.Sprint("node", random.IntN(nodes+2)))
			}
		}
		for range random.IntN(3) {
			values := [][]string{{"1"}, {"1", "2"}, {"1 2"}, {"3"}}[random.IntN(4)]
			sv.NodeSelectors = append(sv.NodeSelectors, lb.Selector{{Key: "zone", Operator: lb.In, Values: values}})
		}
		s.Services = append(s.Services, &sv)
		if from = from.Next(); random.IntN(4) > 0 && i%2 == 0 {
			from = from.Prev() // shared with the next one
		}
	}
	owners := ForNode("node0", s).Owners
	byAddress := map[netip.Addr][]*lb.Service{}
	for _, sv := range s.Services {
		byAddress[sv.Addresses[0]] = append(byAddress[sv.Addresses[0]], sv)
	}
	for a, services := range byAddress {
		alone := s
		alone.Services = []*lb.Service{{Key: services[0].Key, Addresses: []netip.Addr{a}, Backends: servedOn()}}
		alone.Members = map[string]bool{}
		// Of the nodes that all Services select, those that serve most of the Services.
		served := map[string]int{}
		for name, n := range s.Nodes {
			for _, sv := range services {
				if !sv.Local || sv.Backends.Nodes.Has(name) {
					served[name]++
				}
			}
			if slices.ContainsFunc(services, func(sv *lb.Service) bool { return !selects(sv.NodeSelectors, n.Labels) }) {
				delete(served, name)
			}
		}
		best := slices.Max(append(slices.Collect(maps.Values(served)), 1))
		for name := range s.Nodes {
			alone.Members[name] = served[name] == best
		}
		if want := ForNode("node0", alone).Owners.Of(a); owners.Of(a) != want {
			t.Errorf("%v is owned by %q, want %q: %+v", a, owners.Of(a), want, services)
		}
	}
}

// BenchmarkForNode10k plans 10,000 Services of 1,000 nodes: of all nodes, of those with an endpoint, of a zone, and
// each of other ones. All is a plan of them; One is what a change of one of them costs a Memory.
func BenchmarkForNode10k(b *testing.B) {
	for _, tt := range []struct {
		name string
		edit func(i int, s *lb.Service)
	}{
		{"Cluster", func(int, *lb.Service) {}},
		{"Local", func(i int, s *lb.Service) {
			s.Local = true
			for j := range 3 {
				s.Backends.Nodes = s.Backends.Nodes.With(fmt.Sprint("node", (i*7+j*331)%1000))
			}
		}},
		{"Zones", func(i int, s *lb.Service) {
			s.NodeSelectors = []lb.Selector{{{Key: "zone", Operator: lb.In, Values: []string{fmt.Sprint(i % 10)}}}}
		}},
		{"Selectors", func(i int, s *lb.Service) {
			s.NodeSelectors = []lb.Selector{{
				{Key: "zone", Operator: lb.In, Values: []string{fmt.Sprint(i % 10), fmt.Sprint(i)}},
			}}
		}},
	} {
		s := lb.State{
			Nodes: map[string]lb.Node{}, Members: map[string]bool{}, Links: map[string][]lb.Link{},
			L2Advertisements: []lb.L2Advertisement{{Name: "l2"}},
		}
		for i := range 1000 {
			name := fmt.Sprint("node", i)
			s.Nodes[name], s.Members[name] = lb.Node{Name: name, Labels: map[string]string{"zone": fmt.Sprint(i % 10)}}, true
			s.Links[name] = links(name, "eth0=10.0.0.0/8")
		}
		from := netip.MustParseAddr("10.0.0.0")
		s.Pools = []lb.Pool{{Name: "p", Ranges: []lb.Range{{From: from, To: netip.MustParseAddr("10.0.255.255")}}}}
		for i := range 10_000 {
			sv := lb.Service{
				Key: lb.Key{Namespace: "ns", Name: fmt.Sprintf("%05d", i)}, Addresses: []netip.Addr{from},
				Backends: servedOn(),
			}
			tt.edit(i, &sv)
			s.Services, from = append(s.Services, &sv), from.Next()
		}
		b.Run(tt.name+"/All", func(b *testing.B) {
			for b.Loop() {
				ForNode("node1", s)
			}
		})
		var m Memory
		s.Here.Previous = &lb.Previous{Owners: m.ForNode("node1", s).Owners}
		b.Run(tt.name+"/One", func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				s.Services = slices.Clone(s.Services)
				one := new(*s.Services[i%len(s.Services)])
				one.Backends = servedOn(fmt.Sprint("node", i%1000))
				s.Services[i%len(s.Services)] = one
				m.ForNode("node1", s)
			}
		})
	}
}
