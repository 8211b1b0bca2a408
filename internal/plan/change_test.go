package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// BenchmarkChange plans after one change, as a speaker does, plan after plan. Each leaves the plan of all Services but
// one as it is: an endpoint moves; a pod starts, which adds an address to a link of this node; a label of another node
// changes that no object of the administrator selects; another node gets or loses a BGP session.
func BenchmarkChange(b *testing.B) {
	for _, kind := range []string{"L2", "BGP", "DualStack"} {
		for _, services := range []int{1000, 3000, 10_000} {
			for _, change := range slices.Sorted(maps.Keys(singleChanges)) {
				b.Run(fmt.Sprintf("%s/%d/%s", kind, services, change), func(b *testing.B) {
					s, m := largeCluster(services, kind), Memory{}
					for range 3 { // until the plan before is known
						next(&m, &s)
					}
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						singleChanges[change](i, &s)
						next(&m, &s)
					}
				})
			}
		}
	}
}

// next makes the next plan, and carries it out.
func next(m *Memory, s *lb.State) {
	s.Now = s.Now.Add(time.Second)
	p := m.ForNode("node1", *s)
	s.Here.Previous = &lb.Previous{Owners: p.Owners, Relays: p.Relays}
	s.Here.Advertised = p.Advertised
	s.Here.Newcomers = p.Newcomers
}

// singleChanges are changes, by name.
var singleChanges = map[string]func(i int, s *lb.State){
	"nothing": func(int, *lb.State) {},
	"endpoint": func(i int, s *lb.State) {
		s.Services = slices.Clone(s.Services)
		one := new(*s.Services[i*7919%len(s.Services)])
		one.Backends = servedOn(fmt.Sprint("node", i%1000), fmt.Sprint("node", (i+8)%1000))
		s.Services[i*7919%len(s.Services)] = one
	},
	"pod": func(i int, s *lb.State) {
		s.Here.Addresses = []netip.Addr{hostAddress(1, v4), hostAddress(2+i%1000, v6)}
	},
	"label": func(i int, s *lb.State) {
		s.Nodes = maps.Clone(s.Nodes)
		n := s.Nodes["node7"]
		n.Labels = maps.Clone(n.Labels)
		n.Labels["version"] = fmt.Sprint(i)
		s.Nodes["node7"] = n
	},
	"session": func(i int, s *lb.State) {
		s.Unfit = maps.Clone(s.Unfit)
		if s.Unfit == nil {
			s.Unfit = map[string]lb.Unfit{}
		}
		s.Unfit["node7"] ^= lb.SessionlessIPv4
	},
}
