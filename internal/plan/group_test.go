package plan

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/memo"
)

// TestGroupAlone checks that a group which is planned alone, with the facts of its own addresses and Services only,
// gets what it gets among all others. Only what is named joins groups: before the plan, which addresses have source
// ranges or are closed while a node does not filter; after it, the sentence on a route that has two values of an
// attribute.
func TestGroupAlone(t *testing.T) {
	tried := 0
	for seed := range uint64(20) {
		w := newTown(t, seed)
		for step := range 100 {
			w.step()
			w.Now = w.Now.Add(time.Duration(w.IntN(4000)) * time.Millisecond)
			m := Memory{}
			whole := m.ForNode("w1", w.State)
			for _, g := range m.groups.All {
				tried++
				alone := planAlone(m.planner.common, w.narrowed(g))
				if !reflect.DeepEqual(alone, *m.table.Of(g)) {
					t.Fatalf("seed %d, step %d, %v: -among all +alone\n%s", seed, step, g.Addresses,
						cmp.Diff(*m.table.Of(g), alone, inside...))
				}
			}
			if w.IntN(8) > 0 {
				w.Here.Previous = &lb.Previous{Owners: whole.Owners, Relays: whole.Relays}
				w.Here.Advertised = whole.Advertised
			}
		}
	}
	t.Logf("%d groups", tried)
	if tried < 10_000 {
		t.Error("these are too few to show anything")
	}
}

// planAlone plans the only group of a State, with the joins of all groups.
func planAlone(all *common, s lb.State) effects {
	var groups lb.Groups
	groups.Form(s.Services, s.Leaving)
	c := nextCommon(nil, "w1", s)
	c.ranged, c.closed = all.ranged, all.closed
	f := nextLocalFacts(&localFacts{}, s, &groups, c.labels)
	g := groups.All[0]
	return c.planGroup(g, f.inputs(g), memo.NewClock(s.Now))
}

// narrowed returns a State that has one group only, and of what the node knows only what concerns it.
func (w *town) narrowed(g *lb.Group) lb.State {
	s := w.State
	s.Services, s.Leaving = g.Services, nil
	for _, one := range w.Leaving {
		isOfGroup := slices.ContainsFunc(one.Addresses, g.Has)
		if isOfGroup {
			s.Leaving = append(s.Leaving, one)
		}
	}

	isOther := func(a netip.Addr) bool { return !g.Has(a) }
	isOtherKey := func(k lb.Key) bool {
		return !slices.ContainsFunc(g.Services, func(s *lb.Service) bool { return s.Key == k })
	}
	h := &s.Here
	h.Addresses = slices.DeleteFunc(slices.Clone(h.Addresses), isOther)
	h.Newer, h.Inherited, h.Unserved = maps.Clone(h.Newer), maps.Clone(h.Inherited), maps.Clone(h.Unserved)
	maps.DeleteFunc(h.Newer, func(a netip.Addr, _ string) bool { return isOther(a) })
	maps.DeleteFunc(h.Inherited, func(a, _ netip.Addr) bool { return isOther(a) })
	maps.DeleteFunc(h.Unserved, func(k lb.Key, _ bool) bool { return isOtherKey(k) })
	h.Announced = withoutKeys(h.Announced, isOther)
	h.Advertised = withoutKeys(h.Advertised, isOther)
	h.Refused = withoutKeys(h.Refused, isOtherKey)
	if h.Previous != nil {
		h.Previous = &lb.Previous{
			Owners: withoutKeys(h.Previous.Owners, isOther),
			Relays: withoutKeys(h.Previous.Relays, isOther),
		}
	}
	s.Reserved, s.ProxyNodes, s.Namespaces = nil, nil, nil
	s.Claims, s.NotServed, s.FloatingIPs = nil, nil, nil
	if !g.Proxied {
		s.ProxyPods = nil
	}
	return s
}

func withoutKeys[K lb.Ordered[K], V comparable](m lb.Map[K, V], isOther func(K) bool) lb.Map[K, V] {
	return m.Without(slices.DeleteFunc(slices.Collect(m.Keys()), func(k K) bool { return !isOther(k) })...)
}
