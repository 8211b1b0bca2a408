package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// town is a State of which each step changes something, as sources do: what was there before stays as it was.
type town struct {
	*rand.Rand
	t *testing.T
	lb.State
}

// newTown returns base with a dozen Services, some of which share addresses, and two advertisements that contradict
// each other where both select.
func newTown(t *testing.T, seed uint64) *town {
	w := &town{rand.New(rand.NewPCG(seed, 0)), t, base()}
	for i := range 12 {
		w.Services = append(w.Services, w.service(i))
	}
	w.put(w.Services...)
	w.advertise()
	return w
}

// service returns a Service that may share its IPv4 address with another one, and a wide route anyway.
func (w *town) service(i int) *lb.Service {
	s := base().Services[0]
	s.Key = lb.Key{Namespace: []string{"default", "other"}[i%2], Name: fmt.Sprint("s", i)}
	shared := i
	if w.IntN(6) == 0 {
		shared = w.IntN(12)
	}
	s.Addresses = []netip.Addr{
		netip.AddrFrom4([4]byte{192, 0, 2, byte(20 + 3*shared)}),
		netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", 0x20+3*i)),
	}
	s.AnnouncedBy = lb.ByNode{{Address: s.Addresses[0], Node: w.node()}}
	s.Created = start.Add(time.Duration(w.IntN(3)) * time.Second)
	if w.IntN(4) == 0 {
		s.NodeSelectors = labelled("name", w.node(), w.node())
	}
	if w.IntN(3) == 0 { // an address that was cut from its pool
		s.Record = lb.Origins{{Address: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), Pool: "lan"}}
	}
	if w.IntN(4) == 0 {
		s.Unserved = []lb.Port{{Protocol: "TCP", Port: 81}}
	}
	s.Labels = map[string]string{"app": []string{"web", "a"}[w.IntN(2)]}
	return s
}

func (w *town) node() string { return fmt.Sprint("w", 1+w.IntN(3)) }

// advertise sets the advertisements.
func (w *town) advertise() {
	w.L2Advertisements = []lb.L2Advertisement{{Name: "l2"}}
	w.BGPAdvertisements = []lb.BGPAdvertisement{{Name: "bgp", AggregationLength: 32, AggregationLengthV6: 128}, {
		Name: "wide", AggregationLength: 28, AggregationLengthV6: 124, LocalPref: uint32(w.IntN(2)),
		Scope: lb.Scope{ServiceSelectors: labelled("app", "a")},
	}}
}

// put replaces Services, or adds them, in a new list that is ordered by key.
func (w *town) put(services ...*lb.Service) {
	all := map[lb.Key]*lb.Service{}
	for _, s := range slices.Concat(w.Services, services) {
		all[s.Key] = s
	}
	w.Services = slices.SortedFunc(maps.Values(all), func(a, b *lb.Service) int { return a.Key.Compare(b.Key) })
}

// fresh copies what orders change.
func (w *town) fresh() {
	s := &w.State
	s.Nodes = maps.Clone(s.Nodes)
	s.Links = maps.Clone(s.Links)
	s.Unfit = maps.Clone(s.Unfit)
	s.Members = maps.Clone(s.Members)
	s.Left = maps.Clone(s.Left)
	s.Stopping = maps.Clone(s.Stopping)
	s.HeldDown = maps.Clone(s.HeldDown)
	s.SpeakerDown = maps.Clone(s.SpeakerDown)
	s.L2Advertisements = slices.Clone(s.L2Advertisements)
	s.BGPAdvertisements = slices.Clone(s.BGPAdvertisements)
	s.Peers = slices.Clone(s.Peers)
	s.ProxyPods, s.Pools = slices.Clone(s.ProxyPods), slices.Clone(s.Pools)
}

// step changes one thing, or restores some as they are in base.
func (w *town) step() {
	w.fresh()
	one := base()
	switch w.IntN(34) {
	case 0:
		w.Nodes = one.Nodes
		w.Links = one.Links
		w.Peers = one.Peers
		w.Pools = one.Pools
	case 1:
		w.Members = one.Members
		w.Left = one.Left
		w.Stopping = one.Stopping
		w.HeldDown = one.HeldDown
		w.SpeakerDown = one.SpeakerDown
	case 2:
		w.Unfit = one.Unfit
		w.Here = lb.Here{}
		w.OtherDataPath = false
		w.Leaving = nil
	case 3:
		w.advertise()
	case 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14:
		w.put(w.service(w.IntN(12)))
	case 15:
		w.Pools[0].Restricted, w.Pools[0].SourceRanges = w.IntN(2) == 0, prefixes("10.0.0.0/8")
		w.Pools[0].Reset, w.Pools[0].Open = w.IntN(2) == 0, w.IntN(2) == 0
	case 16:
		w.ProxyPods, w.ProxyNodes = nil, nil
	case 17:
		w.Services = slices.DeleteFunc(slices.Clone(w.Services), func(s *lb.Service) bool { return s.Key.Name[0] != 's' })
	case 18, 19:
		w.leave()
	default:
		w.order()
	}
}

// leave lets a Service leave, or drops those that left.
func (w *town) leave() {
	if len(w.Services) == 0 || w.IntN(3) == 0 {
		w.Leaving = nil
		return
	}
	k := w.IntN(len(w.Services))
	s := w.Services[k]
	w.Services = slices.Delete(slices.Clone(w.Services), k, k+1)
	w.Leaving = slices.DeleteFunc(slices.Clone(w.Leaving), func(l lb.Leaving) bool { return l.Key == s.Key })
	l := lb.Leaving{Key: s.Key, Addresses: s.Addresses}
	if len(s.Addresses) > 0 {
		l.Served = s
	}
	w.Leaving = append(w.Leaving, l)
	slices.SortFunc(w.Leaving, func(a, b lb.Leaving) int { return a.Key.Compare(b.Key) })
}

// order changes a Service, a node or what w1 knows.
func (w *town) order() {
	if len(w.Services) == 0 || w.L2Advertisements == nil || w.BGPAdvertisements == nil || len(w.Nodes) < 3 {
		w.advertise()
		w.Nodes, w.Here.Advertised = base().Nodes, lb.Map[netip.Addr, time.Time]{}
		w.put(w.service(0))
		return
	}
	k := w.IntN(len(w.Services))
	rest, before := slices.Delete(slices.Clone(w.Services), k, k+1), w.Services[k]
	one := new(*before)
	w.Services = []*lb.Service{one}
	name := slices.Sorted(maps.Keys(orders))[w.IntN(len(orders))]
	args := " " + w.node()
	switch {
	case w.IntN(3) == 0:
		name = []string{"previous", "relayed", "unserved", "advertised"}[w.IntN(4)]
	case w.IntN(6) == 0:
		name = slices.Sorted(maps.Keys(nodeOrders))[w.IntN(len(nodeOrders))]
	case name == "since":
		args = []string{" 1s", " 5s"}[w.IntN(2)]
	case name == "serves":
		args = " 80=30080"
	case name == "ports":
		args = []string{" 80", " 80 443"}[w.IntN(2)]
	case name == "backends":
		args = []string{" 4/all=w1", " 46/all=w1!,w2", " 46/80=w1 46/443=w2,w3", " 4/80=w1,w2! 6/443=w3"}[w.IntN(4)]
	case name == "links":
		args += []string{" eth0=lan", " eth0=lan4", " !eth0=lan", " eth1"}[w.IntN(4)]
	}
	previous := w.Here.Previous
	do(w.t, &w.State, name+args)
	a := one.Addresses
	if len(a) > 0 { // orders know the addresses of base
		moved := map[netip.Addr]netip.Addr{v4: a[0], v6: a[len(a)-1]}
		for i := range w.Services {
			w.Services[i].Addresses = slices.Clone(w.Services[i].Addresses)
			for j, b := range w.Services[i].Addresses {
				if to, known := moved[b]; known {
					w.Services[i].Addresses[j] = to
				}
			}
		}
		w.Here.Newer, w.Here.Inherited = rekeyed(w.Here.Newer, moved), rekeyed(w.Here.Inherited, moved)
		w.Here.Announced = lb.MapOf(rekeyed(maps.Collect(w.Here.Announced.All()), moved))
		w.Here.Advertised = lb.MapOf(rekeyed(maps.Collect(w.Here.Advertised.All()), moved))
		if p := w.Here.Previous; p != nil && p != previous {
			owners := map[netip.Addr]string{}
			if previous != nil {
				owners = maps.Collect(previous.Owners.All())
			}
			maps.Copy(owners, rekeyed(maps.Collect(p.Owners.All()), moved))
			p.Owners = lb.MapOf(owners)
			relays := map[netip.Addr]lb.Relay{}
			for a, r := range p.Relays.All() {
				r.Address = moved[a]
				relays[r.Address] = r
			}
			p.Relays = lb.MapOf(relays)
		}
	}
	changed := w.Services
	if len(changed) == 1 && reflect.DeepEqual(changed[0], before) {
		changed[0] = before
	}
	w.Services = rest
	w.put(changed...)
}

func rekeyed[V any](m map[netip.Addr]V, moved map[netip.Addr]netip.Addr) map[netip.Addr]V {
	if m == nil {
		return nil
	}
	out := map[netip.Addr]V{}
	for a, v := range m {
		if to, known := moved[a]; known {
			a = to
		}
		out[a] = v
	}
	return out
}

// inside has a comparison of plans look into maps.
var inside = []cmp.Option{
	cmp.Exporter(func(reflect.Type) bool { return true }),
	cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{}),
}

// TestMemory: plan after plan, a Memory plans what ForNode plans, and takes most from the plan before where one thing
// changed. It changes nothing of the plan before, which sinks and the witness have. In every second history what a node
// concerns is planned first. HISTORIES is the number of histories of 200 steps; 500 are 10^5.
func TestMemory(t *testing.T) {
	histories := 20
	if testing.Short() {
		histories = 10
	}
	if n, err := strconv.Atoi(os.Getenv("HISTORIES")); err == nil {
		histories = n
	}
	taken, planned, late := 0, 0, 0
	for seed := range uint64(histories) {
		w := newTown(t, seed)
		m := Memory{stagedFrom: int(seed % 2)}
		before := Plan{}
		stays := Plan{}
		last := &planner{}
		for step := range 200 {
			if w.step(); w.IntN(4) > 0 {
				w.Now = w.Now.Add(time.Duration(w.IntN(4000)) * time.Millisecond)
			}
			got, want := m.ForNode("w1", w.State), ForNode("w1", w.State)
			if m.IsLate() {
				late++
				checkConcerned(t, last, m.planner, want)
				if w.IntN(3) == 0 {
					w.carryOut(got)
					last = m.planner
					continue // something else changes before the rest is planned
				}
				got = m.ForNode("w1", w.State)
			}
			last = m.planner
			if !reflect.DeepEqual(want, got) {
				t.Fatalf("seed %d, step %d: -ForNode +Memory\n%s", seed, step, cmp.Diff(want, got, inside...))
			}
			if !reflect.DeepEqual(stays, before) {
				t.Fatalf("seed %d, step %d: the plan before has changed: -was +is\n%s", seed, step,
					cmp.Diff(stays, before, inside...))
			}
			taken += recalled(got, before)
			planned += len(w.Services)
			before = got
			stays = want
			w.carryOut(got)
		}
	}
	t.Logf("of %d Services %d were taken from the plan before; %d plans left a rest", planned, taken, late)
	if taken < planned/5 || late < histories {
		t.Error("these are too few to show anything")
	}
}

// carryOut has the next State know a plan, mostly.
func (w *town) carryOut(p Plan) {
	if w.IntN(8) > 0 {
		w.Here.Previous = &lb.Previous{Owners: p.Owners, Relays: p.Relays}
		w.Here.Advertised = p.Advertised
		w.Here.Newcomers = p.Newcomers
	}
}

// checkConcerned checks that a plan which leaves a rest has all about the addresses that concern a node which changed:
// it owned them by the last plan, or got their older connections, or owns them where no node did.
func checkConcerned(t *testing.T, last, late *planner, want Plan) {
	t.Helper()
	changed, _ := changedNodes(&last.common.state, &late.common.state)
	for _, g := range late.groups.All {
		for _, a := range g.Addresses {
			before, after := last.plan.Owners.Of(a), want.Owners.Of(a)
			former := last.plan.Relays.Of(a).Former
			isConcerned := changed[before] ||
				changed[former] ||
				before == "" && changed[after]
			if !isConcerned {
				continue
			}
			diff := cmp.Diff(about(a, want), about(a, late.plan), inside...)
			if diff != "" {
				t.Fatalf("%s, %v changed: -ForNode +Memory\n%s", a, changed, diff)
			}
		}
	}
}

// about returns what a plan does about an address.
func about(a netip.Addr, p Plan) []any {
	return []any{
		p.Owners.Of(a),
		p.Announcements.Of(a),
		p.Relays.Of(a),
		p.Yield.Has(a),
	}
}

// recalled returns how many verdicts of a plan share memory with the plan before.
func recalled(p, before Plan) (n int) {
	shared := map[*string]bool{}
	for _, v := range before.Verdicts.All() {
		if len(v.L2.Nodes) > 0 {
			shared[&v.L2.Nodes[0]] = true
		}
	}
	for _, v := range p.Verdicts.All() {
		if len(v.L2.Nodes) > 0 && shared[&v.L2.Nodes[0]] {
			n++
		}
	}
	return n
}

// TestShared: where a Service changes and its plan does not, the next plan is the last one, and the sinks see that at
// once. Where it does, the rest stays.
func TestShared(t *testing.T) {
	s, m := base(), Memory{}
	for i := range 8 {
		one := new(*s.Services[0])
		one.Key.Name, one.Addresses = fmt.Sprint("x", i), []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)})}
		s.Services = append(s.Services, one)
	}
	slices.SortFunc(s.Services, func(a, b *lb.Service) int { return a.Key.Compare(b.Key) })
	next := func(change func(*lb.Service)) Plan {
		s.Services = slices.Clone(s.Services)
		one := new(*s.Services[3])
		change(one)
		s.Services[3] = one
		p := m.ForNode("w1", s)
		s.Here.Previous, s.Here.Advertised = &lb.Previous{Owners: p.Owners, Relays: p.Relays}, p.Advertised
		return p
	}
	shared := func(a, b Plan) []bool {
		return []bool{
			a.Owners.Same(b.Owners), a.Announcements.Same(b.Announcements), a.Yield.Same(b.Yield), a.Routes.Same(b.Routes),
			a.Advertised.Same(b.Advertised), a.Filter.Frontends.Same(b.Filter.Frontends), a.Filter.Pings.Same(b.Filter.Pings),
			lb.Same(a.Filter.Guarded, b.Filter.Guarded), a.Verdicts.Same(b.Verdicts),
		}
	}
	next(func(*lb.Service) {})
	last := next(func(*lb.Service) {})
	moved := next(func(s *lb.Service) { s.Backends = servedOn("w3") })
	if got := shared(last, moved); slices.Contains(got, false) {
		t.Errorf("an endpoint moved, and shared is %v", got)
	}
	silent := next(func(s *lb.Service) { s.Backends = lb.Backend{} })
	wronglyShared := moved.Owners.Same(silent.Owners) || moved.Filter.Pings.Same(silent.Filter.Pings) ||
		!moved.Filter.Frontends.Same(silent.Filter.Frontends)
	if wronglyShared {
		t.Errorf("a Service serves no longer, and shared is %v", shared(moved, silent))
	}
	for k, v := range silent.Verdicts.All() {
		if (v == moved.Verdicts.Of(k)) != (k != s.Services[3].Key) {
			t.Errorf("the verdict on %v: the same pointer is %v", k, v == moved.Verdicts.Of(k))
		}
	}
	s.Left = map[string]bool{"another": true} // which changes what may concern all, and decides nothing
	whole := m.ForNode("w1", s)
	if !whole.Filter.Frontends.Same(silent.Filter.Frontends) || !whole.Announcements.Same(silent.Announcements) {
		t.Error("a plan of all Services, as after a node's death, has the same content, and the sinks take it " +
			"for another one")
	}
}

// TestConcernedFirst checks that among many Services the addresses of a node that died have new owners in the first
// plan, which leaves the others as they were, and that the next plan has everything. Any other change is planned at
// once.
func TestConcernedFirst(t *testing.T) {
	s, m := largeCluster(2*manyGroups, "L2"), Memory{}
	for range 3 {
		next(&m, &s)
	}
	before := m.planner.plan
	s.Members = maps.Clone(s.Members)
	delete(s.Members, "node2")
	want := ForNode("node1", s)

	first := m.ForNode("node1", s)
	if !m.IsLate() || !first.Owners.Same(want.Owners) {
		t.Fatalf("the first plan leaves a rest: %v, has all owners: %v", m.IsLate(), first.Owners.Same(want.Owners))
	}
	stayed := 0
	for k, v := range first.Verdicts.All() {
		if before.Verdicts.Of(k) == v {
			stayed++
		}
	}
	if stayed < manyGroups {
		t.Errorf("of %d verdicts only %d were left to the next plan", first.Verdicts.Len(), stayed)
	}

	second := m.ForNode("node1", s)
	if m.IsLate() || !reflect.DeepEqual(second, want) {
		t.Errorf("the second plan leaves a rest: %v\n%s", m.IsLate(), cmp.Diff(want, second, inside...))
	}
	s.Here.PathFails = true
	if m.ForNode("node1", s); m.IsLate() {
		t.Error("a plan after another change leaves a rest")
	}
}
