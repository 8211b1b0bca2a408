package plan

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Memory makes plan after plan, each from the last one: it plans the Services that changed, as pointers, or of which
// the node knows something else, and all that share an address with such a Service. What is as it was in two plans is
// the same slice, map or pointer. It plans what the function ForNode plans, which remembers nothing. What it was given
// and what it returned must not be changed. Calls must not overlap, but for Check.
type Memory struct {
	// last made the last plan. Check reads its plan, state and node, which never change; the rest is the next
	// planner's.
	last atomic.Pointer[planner]
	// wrong: what is remembered is not to be used.
	wrong atomic.Bool
}

// changes are what is not as in the last plan.
type changes struct {
	// whole: all is new.
	whole bool
	// again are the Services to be planned, by index. at are the addresses of these, of those that are gone, and of
	// those that leave; queue has the addresses whose Services are still to be found.
	again []bool
	at    map[netip.Addr]bool
	queue []netip.Addr
	// prefixes of the routes that are not as before.
	prefixes map[netip.Prefix]bool
	// terms: what Services say of their addresses beside their frontends.
	terms bool
}

// ForNode computes the plan of the named node.
func (m *Memory) ForNode(node string, s lb.State) Plan {
	last := m.last.Load()
	before := &Plan{}
	if last != nil {
		before = &last.plan
	}
	var p *planner
	if !m.wrong.Swap(false) && last != nil && last.node == node {
		if maps.Equal(s.Members, last.state.Members) {
			s.Members = last.state.Members // most of what there is to compare
		}
		if reflect.DeepEqual(common(s), common(last.state)) {
			p = follow(last, s, false)
		}
	}
	if p == nil || !slices.Equal(p.ranged, last.ranged) || !slices.Equal(p.closed, last.closed) {
		last = newPlanner(node, s)
		p = follow(last, s, true)
	}
	p.heed(last)
	p.widen()
	for i, again := range p.changes.again {
		if again {
			p.service(i)
		}
	}
	p.finish(last, before)
	m.last.Store(p)
	return p.plan
}

// Check computes the last plan from nothing, and returns the parts in which it differs. If there are any, the next plan
// remembers nothing.
func (m *Memory) Check() (wrong []string) {
	last := m.last.Load()
	if last == nil {
		return nil
	}
	have, whole := reflect.ValueOf(last.plan), reflect.ValueOf(ForNode(last.node, last.state))
	for i := range have.NumField() {
		if !reflect.DeepEqual(have.Field(i).Interface(), whole.Field(i).Interface()) {
			wrong = append(wrong, have.Type().Field(i).Name)
		}
	}
	m.wrong.Store(len(wrong) > 0)
	return wrong
}

// Plant makes the last plan wrong, for a test of the witness: another node owns one of its addresses.
func (m *Memory) Plant() {
	last := m.last.Load()
	if last == nil {
		return
	}
	wrong := *last
	for a := range last.plan.Owners.All() {
		wrong.plan.Owners = last.plan.Owners.Put(a, "planted")
		break
	}
	m.last.CompareAndSwap(last, &wrong)
}

// common returns the part of a State that may concern every Service: all but what concerns one, or none that is
// remembered.
func common(s lb.State) lb.State {
	s.Now = time.Time{}
	s.Services = nil
	s.Leaving = nil
	s.Reserved = nil
	s.ProxyNodes = nil
	s.ProxyPods = nil
	s.Slices, s.EgressPods = nil, nil
	h := &s.Here
	h.EgressLacks, h.Ways = nil, nil
	if h.Unserved, h.Advertised = nil, (lb.Map[netip.Addr, time.Time]{}); h.Previous != nil {
		h.Previous = &lb.Previous{}
	}
	return s
}

// follow returns a planner that has what the last one had, and knows which Services changed. The last one is used no
// more, but for its plan.
func follow(last *planner, s lb.State, whole bool) *planner {
	p := *last
	p.state, p.elections = s, map[netip.Addr]*election{}
	n := 0
	if whole {
		n = len(s.Services)
		p.servicesOf = make(map[netip.Addr][]*lb.Service, n)
	}
	p.part = part{
		owners:     make(map[netip.Addr]string, n),
		advertised: map[netip.Addr]time.Time{},
		announced:  map[netip.Addr]lb.Announcement{},
		yield:      map[netip.Addr]struct{}{},
		relays:     map[netip.Addr]lb.Relay{},
		verdicts:   map[lb.Key]*Verdict{},
	}
	p.changes = changes{
		whole:    whole,
		again:    make([]bool, len(s.Services)),
		at:       map[netip.Addr]bool{},
		prefixes: map[netip.Prefix]bool{},
	}
	c := &p.changes
	lb.Changes(last.state.Services, s.Services, func(old, new *lb.Service, _, j int) {
		if c.terms = c.terms || !sameTerms(old, new); old != nil {
			p.forget(old)
		}
		if new != nil {
			p.meet(new)
			c.again[j] = true
		}
	})
	p.ranged = p.rangedAddresses()
	p.closed = p.closedHere()
	return &p
}

// meet takes a Service in; forget takes one out that has changed or is gone.
func (p *planner) meet(s *lb.Service) {
	for _, a := range s.Addresses {
		all := p.servicesOf[a]
		if i, found := slices.BinarySearchFunc(all, s.Key, compareKeys); !found {
			p.servicesOf[a] = slices.Insert(all, i, s)
		}
	}
	p.changes.touch(s.Addresses...)
	if p.pools.exceptional(s) {
		p.exceptions[s.Key] = s
	}
	if concernsProxies(s) {
		p.proxied++
	}
}

func (p *planner) forget(s *lb.Service) {
	for _, a := range s.Addresses {
		if i, found := slices.BinarySearchFunc(p.servicesOf[a], s.Key, compareKeys); found {
			p.servicesOf[a] = slices.Delete(p.servicesOf[a], i, i+1)
		}
		if len(p.servicesOf[a]) == 0 {
			delete(p.servicesOf, a)
		}
	}
	p.changes.touch(s.Addresses...)
	p.reroute(s.Key, nil)
	delete(p.dated, s.Key)
	delete(p.exceptions, s.Key)
	p.verdicts[s.Key] = nil
	if concernsProxies(s) {
		p.proxied--
	}
}

func compareKeys(s *lb.Service, k lb.Key) int { return s.Key.Compare(k) }

func concernsProxies(s *lb.Service) bool { return s.Proxied || s.Proxy != nil }

// sameTerms reports whether a Service says the same of its addresses as before, beside its frontends.
func sameTerms(old, new *lb.Service) bool {
	return old != nil &&
		new != nil &&
		slices.Equal(old.Record, new.Record) &&
		slices.Equal(old.Addresses, new.Addresses) &&
		len(old.Unserved) == len(new.Unserved)
}

// touch notes that something of these addresses is not as before.
func (c *changes) touch(addrs ...netip.Addr) {
	for _, a := range addrs {
		if !c.whole && !c.at[a] {
			c.at[a] = true
			c.queue = append(c.queue, a)
		}
	}
}

// again notes that a Service is to be planned.
func (p *planner) again(k lb.Key) {
	if i, found := slices.BinarySearchFunc(p.state.Services, k, compareKeys); found && !p.changes.again[i] {
		p.changes.again[i] = true
		p.changes.touch(p.state.Services[i].Addresses...)
	}
}

// heed notes which Services the node knows something else of than the last plan did, or another time.
func (p *planner) heed(last *planner) {
	h, b := &p.state.Here, &last.state.Here
	for k := range p.dated {
		p.again(k)
	}
	for _, unserved := range []map[lb.Key]bool{h.Unserved, b.Unserved} {
		for k := range unserved {
			if h.Unserved[k] != b.Unserved[k] {
				p.again(k)
			}
		}
	}
	compare(&p.changes, b.Advertised, h.Advertised)
	if h.Previous != nil && b.Previous != nil {
		compare(&p.changes, b.Previous.Owners, h.Previous.Owners)
		compare(&p.changes, b.Previous.Relays, h.Previous.Relays)
	}
	for _, leaving := range [][]lb.Leaving{p.state.Leaving, last.state.Leaving} {
		for i := range leaving {
			p.changes.touch(leaving[i].Served.Addresses...)
		}
	}
}

// compare notes where two maps differ.
func compare[V comparable](c *changes, before, after lb.Map[netip.Addr, V]) {
	before.Changes(after, func(a netip.Addr, _, _ V, _, _ bool) { c.touch(a) })
}

// widen notes that all Services are to be planned that share an address with a Service that is. So a Service that is
// not planned shares none.
func (p *planner) widen() {
	c := &p.changes
	for len(c.queue) > 0 {
		a := c.queue[0]
		c.queue = c.queue[1:]
		for _, s := range p.servicesOf[a] {
			p.again(s.Key)
		}
	}
}

// reroute replaces the routes to the addresses of a Service.
func (p *planner) reroute(k lb.Key, routes []routeTo) {
	before := p.routesOf[k]
	if slices.Equal(before, routes) {
		return
	}
	for _, r := range slices.Concat(before, routes) {
		p.changes.prefixes[r.prefix] = true
	}
	if p.routesOf[k] = routes; routes == nil {
		delete(p.routesOf, k)
	}
}

// finish makes the plan of what the last one had, and of what the Services contribute that were planned. Also in a plan
// of all Services what is equal to the plan before stays the same pointer.
func (p *planner) finish(last *planner, before *Plan) {
	c, b := &p.changes, &last.plan
	p.plan.Owners, p.plan.Yield = with(c, b.Owners, p.owners), with(c, b.Yield, p.yield)
	if p.plan.Advertised = with(c, b.Advertised, p.advertised); !p.plan.Advertised.Same(b.Advertised) {
		p.plan.Withdraws = time.Time{}
		for _, until := range p.plan.Advertised.All() {
			p.plan.Withdraws = lb.Sooner(p.plan.Withdraws, until)
		}
	}
	p.plan.Announcements = with(c, b.Announcements, keptAll(before.Announcements, p.announced, lb.Announcement.Equal))
	p.continueRelays(last)
	p.advertise(last)
	p.contradict()
	p.plan.Verdicts = b.Verdicts.With(
		maps.Keys(p.verdicts),
		func(k lb.Key) (*Verdict, bool) { return p.verdicts[k], p.verdicts[k] != nil },
	)
	p.filter(last, before)
	p.divert()
	p.elections, p.part = nil, part{}
}

// with returns a map of the last plan with what the Services contribute that were planned.
func with[V comparable](c *changes, last lb.Map[netip.Addr, V], part map[netip.Addr]V) lb.Map[netip.Addr, V] {
	at := maps.Keys(c.at)
	if c.whole {
		at = maps.Keys(part)
	}
	return last.With(at, func(a netip.Addr) (V, bool) { v, has := part[a]; return v, has })
}

// keptAll returns pointers to values: a pointer of the last plan where its value is equal.
func keptAll[K lb.Ordered[K], T any](last lb.Map[K, *T], part map[K]T, equal func(a, b T) bool) map[K]*T {
	out := make(map[K]*T, len(part))
	for k, v := range part {
		if out[k] = last.Of(k); out[k] == nil || !equal(*out[k], v) {
			out[k] = &v
		}
	}
	return out
}

// kept returns a list of the last plan if the new one is equal.
func kept[T comparable](last, list []T) []T {
	if slices.Equal(last, list) {
		return last
	}
	return list
}
