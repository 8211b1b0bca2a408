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

// Memory makes plan after plan, each from the last one: it plans the Services that changed, as pointers, or of which the node knows
// something else, and all that share an address with such a Service. What is as it was in two plans is the same slice, map or pointer. It
// plans what the function ForNode plans, which remembers nothing. What it was given and what it returned must not be changed. Calls must
// not overlap, but for Check.
type Memory struct {
	// last made the last plan. Check reads its plan, state and node, which never change; the rest is the next planner's.
	last atomic.Pointer[planner]
	// wrong: what is remembered is not to be used.
	wrong atomic.Bool
}

// changes are what is not as in the last plan.
type changes struct {
	// whole: all is new.
	whole bool
	// again are the Services to be planned, by index. at are the addresses of these, of those that are gone, and of those that leave; queue has
	// the addresses whose Services are still to be found.
	again []bool
	at    map[netip.Addr]bool
	queue []netip.Addr
	// prefixes of the routes that are not as before.
	prefixes map[netip.Prefix]bool
	// terms: what Services say of their addresses beside their frontends; verdicts: the list of verdicts is not the last plan's.
	terms, verdicts bool
	// owners and advertised are what this plan changed.
	owners     delta[string]
	advertised delta[time.Time]
}

// delta is where a map differs from another one.
type delta[V comparable] struct {
	from, to map[netip.Addr]V
	at       []netip.Addr
}

// ForNode computes the plan of the named node.
func (m *Memory) ForNode(node string, s lb.State) Plan {
	last := m.last.Load()
	var p *planner
	if !m.wrong.Swap(false) && last != nil && last.node == node && reflect.DeepEqual(common(s), common(last.state)) {
		p = follow(last, s, false)
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
	p.finish(last)
	m.last.Store(p)
	return p.plan
}

// Check computes the last plan from nothing, and returns the parts in which it differs. If there are any, the next plan remembers nothing.
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
	wrong.plan.Owners = maps.Clone(last.plan.Owners)
	for a := range wrong.plan.Owners {
		wrong.plan.Owners[a] = "planted"
		break
	}
	m.last.CompareAndSwap(last, &wrong)
}

// common returns the part of a State that may concern every Service: all but what concerns one, or none that is remembered.
func common(s lb.State) lb.State {
	s.Now, s.Services, s.Leaving, s.Reserved, s.ProxyNodes, s.ProxyPods = time.Time{}, nil, nil, nil, nil, nil
	h := &s.Here
	if h.Unserved, h.Advertised = nil, nil; h.Previous != nil {
		h.Previous = &lb.Previous{}
	}
	return s
}

// follow returns a planner that has what the last one had, and knows which Services changed. The last one is used no more, but for its plan.
func follow(last *planner, s lb.State, whole bool) *planner {
	p := *last
	p.state, p.elections = s, map[netip.Addr]*election{}
	n := 0
	if whole {
		n = len(s.Services)
		p.servicesOf = make(map[netip.Addr][]*lb.Service, n)
	}
	p.part = part{
		owners: make(map[netip.Addr]string, n), advertised: map[netip.Addr]time.Time{}, announced: map[netip.Addr]lb.Announcement{},
		yield: map[netip.Addr]bool{}, relays: map[netip.Addr]lb.Relay{},
	}
	p.changes = changes{whole: whole, again: make([]bool, len(s.Services)), at: map[netip.Addr]bool{}, prefixes: map[netip.Prefix]bool{}}
	c, moved := &p.changes, false
	lb.Changes(last.state.Services, s.Services, func(old, new *lb.Service, i, j int) {
		moved = moved || old == nil || new == nil
		if c.terms = c.terms || !sameTerms(old, new); old != nil {
			p.forget(old)
		}
		if new != nil {
			p.meet(new)
			c.again[j] = true
		}
	})
	if moved {
		p.align(last)
	}
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
	if concernsProxies(s) {
		p.proxied--
	}
}

func compareKeys(s *lb.Service, k lb.Key) int { return s.Key.Compare(k) }

func concernsProxies(s *lb.Service) bool { return s.Proxied || s.Proxy != nil }

// sameTerms reports whether a Service says the same of its addresses as before, beside its frontends.
func sameTerms(old, new *lb.Service) bool {
	return old != nil && new != nil && slices.Equal(old.Record, new.Record) && slices.Equal(old.Addresses, new.Addresses) &&
		len(old.Unserved) == len(new.Unserved)
}

// align brings the verdicts of the last plan into the order of the Services.
func (p *planner) align(last *planner) {
	var verdicts []*Verdict // nil for none, as from nothing
	if n := len(p.state.Services); n > 0 {
		verdicts = make([]*Verdict, n)
	}
	from, to := 0, 0
	lb.Changes(last.state.Services, p.state.Services, func(old, new *lb.Service, i, j int) {
		copy(verdicts[to:j], last.plan.Verdicts[from:i])
		if from, to = i, j; old != nil {
			from++
		}
		if new != nil {
			to++
		}
		if old != nil && new != nil {
			verdicts[j] = last.plan.Verdicts[i]
		}
	})
	copy(verdicts[to:], last.plan.Verdicts[from:])
	p.plan.Verdicts, p.changes.verdicts = verdicts, true
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
	p.changes.touch(last.changes.advertised.between(b.Advertised, h.Advertised)...)
	if h.Previous != nil && b.Previous != nil {
		p.changes.touch(last.changes.owners.between(b.Previous.Owners, h.Previous.Owners)...)
		if !lb.Same(h.Previous.Relays, b.Previous.Relays) {
			for _, r := range slices.Concat(h.Previous.Relays, b.Previous.Relays) {
				if relayOf(h.Previous.Relays, r.Address) != relayOf(b.Previous.Relays, r.Address) {
					p.changes.touch(r.Address)
				}
			}
		}
	}
	for _, leaving := range [][]lb.Leaving{p.state.Leaving, last.state.Leaving} {
		for i := range leaving {
			p.changes.touch(leaving[i].Served.Addresses...)
		}
	}
}

// widen notes that all Services are to be planned that share an address with a Service that is. So a Service that is not planned shares none.
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

// finish makes the plan of what the last one had, and of what the Services contribute that were planned.
func (p *planner) finish(last *planner) {
	c, b := &p.changes, &last.plan
	at := slices.SortedFunc(maps.Keys(c.at), netip.Addr.Compare)
	c.owners, c.advertised = changed(c, b.Owners, p.owners), changed(c, b.Advertised, p.advertised)
	if p.plan.Owners, p.plan.Advertised = c.owners.to, c.advertised.to; len(c.advertised.at) > 0 {
		p.plan.Withdraws = earliest(p.plan.Advertised)
	}
	p.plan.Announcements = patched(b.Announcements, at, sorted(p.announced), func(x lb.Announcement, a netip.Addr) int { return x.Address.Compare(a) })
	p.plan.Yield = patched(b.Yield, at, slices.SortedFunc(maps.Keys(p.yield), netip.Addr.Compare), netip.Addr.Compare)
	for _, r := range b.Relays {
		if r.Until.IsZero() && !c.at[r.Address] { // otherwise relayPrevious decides
			p.relays[r.Address] = r
		}
	}
	p.relayPrevious()
	p.plan.Relays = kept(b.Relays, sorted(p.relays))
	p.advertise(last)
	p.contradict()
	p.filter(last, at)
	p.divert()
	p.elections, p.part = nil, part{}
}

// changed returns how a map of the last plan changes.
func changed[V comparable](c *changes, last, part map[netip.Addr]V) delta[V] {
	d := delta[V]{from: last, to: last}
	if c.whole {
		d.to, d.at = part, slices.Collect(maps.Keys(part))
		return d
	}
	for a := range c.at {
		had, before := last[a]
		has, after := part[a]
		if had == has && before == after {
			continue
		}
		if len(d.at) == 0 {
			d.to = maps.Clone(last)
		}
		if d.at = append(d.at, a); after {
			d.to[a] = has
		} else {
			delete(d.to, a)
		}
	}
	return d
}

// between returns where two maps differ.
func (d delta[V]) between(a, b map[netip.Addr]V) (out []netip.Addr) {
	switch {
	case lb.SameMap(a, b):
		return nil
	case lb.SameMap(a, d.from) && lb.SameMap(b, d.to):
		return d.at
	}
	for _, one := range []map[netip.Addr]V{a, b} {
		for k := range one {
			x, left := a[k]
			y, right := b[k]
			if left != right || x != y {
				out = append(out, k)
			}
		}
	}
	return out
}

// patched returns an ordered list with what part has at some keys, which are ordered too; the list itself if that is the same.
func patched[T, K any](list []T, at []K, part []T, order func(T, K) int) (out []T) {
	if len(list) == 0 && len(part) == 0 {
		return nil
	} else if len(list) == 0 {
		return part
	}
	taken, n, same := 0, 0, true
	for _, k := range at {
		i, _ := slices.BinarySearchFunc(list[n:], k, order)
		i += n
		for n = i; n < len(list) && order(list[n], k) == 0; {
			n++
		}
		more := 0
		for more < len(part) && order(part[more], k) == 0 {
			more++
		}
		if !slices.EqualFunc(list[i:n], part[:more], func(a, b T) bool { return reflect.DeepEqual(a, b) }) {
			if same {
				out, same = make([]T, 0, len(list)+len(part)), false
			}
			out = append(append(out, list[taken:i]...), part[:more]...)
			taken = n
		}
		part = part[more:]
	}
	if same {
		return list
	}
	if out = append(out, list[taken:]...); len(out) == 0 {
		return nil
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
