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

// Memory makes plan after plan, and takes from the last one what depends on nothing that changed since: a Service is as it was if it is the
// same pointer. It plans what the function ForNode plans, which remembers nothing. What it was given and what it returned must not be
// changed. Calls must not overlap, but for Check.
type Memory struct {
	last atomic.Pointer[planner]
	// wrong: what is remembered is not to be used.
	wrong atomic.Bool
}

// kept is what the next plan needs to know of a Service beside its addresses.
type kept struct {
	// alone: no Service shares an address with it, and none of its addresses is proxied.
	alone bool
	// dated: its plan depends on the time; contradicted: another Service decided its condition.
	dated, contradicted bool
	// routes to its addresses.
	routes []routeTo
}

// ForNode computes the plan of the named node.
func (m *Memory) ForNode(node string, s lb.State) Plan {
	p, last := newPlanner(node, s), m.last.Load()
	if m.wrong.Swap(false) || last != nil && !p.follows(last) {
		last = nil
	}
	before := 0 // Services are ordered by key, both times
	for i := range s.Services {
		for last != nil && before < len(last.kept)-1 && last.state.Services[before].Key.Compare(s.Services[i].Key) < 0 {
			before++
		}
		if p.kept[i].alone = p.alone(s.Services[i]); last == nil || before == len(last.kept) || !p.recall(i, last, before) {
			p.service(i)
		}
	}
	p.finish()
	p.servicesOf, p.elections, p.rankings = nil, nil, nil
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

// follows reports whether all is as in the last plan that may concern every Service.
func (p *planner) follows(last *planner) bool {
	return p.node == last.node && slices.Equal(p.ranged, last.ranged) && slices.Equal(p.closed, last.closed) &&
		reflect.DeepEqual(common(p.state), common(last.state))
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

// known is what a node knows of one address of a Service. Until when it is advertised matters to a dated plan only.
type known struct {
	unserved, advertised bool
	owner                string
	relay                lb.Relay
}

func knownOf(h *lb.Here, s lb.Key, a netip.Addr) known {
	k := known{unserved: h.Unserved[s]}
	if _, k.advertised = h.Advertised[a]; h.Previous != nil {
		k.owner, k.relay = h.Previous.Owners[a], relayOf(h.Previous.Relays, a)
	}
	return k
}

// alone reports whether the plan of a Service depends on no other Service and no proxy.
func (p *planner) alone(s *lb.Service) bool {
	return !s.Proxied && !slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return len(p.servicesOf[a]) > 1 })
}

// recall takes over what the last plan has for the Service of an index, where its index was before, and reports whether it could.
func (p *planner) recall(i int, last *planner, before int) bool {
	s, k := p.state.Services[i], &last.kept[before]
	if !p.kept[i].alone || !k.alone || k.dated || k.contradicted || s != last.state.Services[before] ||
		slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool {
			return knownOf(&p.state.Here, s.Key, a) != knownOf(&last.state.Here, s.Key, a)
		}) {
		return false
	}
	for _, a := range s.Addresses {
		carry(p.plan.Owners, last.plan.Owners, a)
		carry(p.plan.Advertised, last.plan.Advertised, a)
		carry(p.announced, last.announced, a)
		carry(p.yield, last.yield, a)
		if last.relays[a].Until.IsZero() { // otherwise relayPrevious decides
			carry(p.relays, last.relays, a)
		}
	}
	p.plan.Verdicts[i], p.kept[i].routes = last.plan.Verdicts[before], k.routes
	for _, r := range k.routes {
		p.routes.add(r)
	}
	return true
}

func carry[V any](to, from map[netip.Addr]V, a netip.Addr) {
	if v, has := from[a]; has {
		to[a] = v
	}
}
