package ipam

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// book is a Ledger that decides beside Assign, with how much it carried over.
type book struct {
	Ledger
	*rand.Rand
	// decisions, and those that carried something over; Services, and those carried over.
	decisions, shorter, services, carried int
}

func newBook(seed uint64) *book {
	return &book{Rand: rand.New(rand.NewPCG(seed, 1))}
}

// compare has the Ledger decide what Assign decided. It misses some decisions,
// like a process that does not lead, and makes some like a process that has just started.
func (b *book) compare(s lb.State, want Result) error {
	if b.IntN(20) == 0 {
		b.Ledger = Ledger{}
	}
	if b.IntN(10) == 0 {
		return nil
	}
	s.Services = slices.Clone(s.Services)
	for i := range s.Services {
		s.Services[i].Revision = fmt.Sprintf("%+v", s.Services[i]) // as the same object, if nothing changed
	}
	got := b.Assign(s)
	b.decisions++
	b.services += len(s.Services)
	b.carried += b.Carried()
	if b.Carried() > 0 {
		b.shorter++
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("the Ledger decided otherwise: -Assign +Ledger\n%s", cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })))
	}
	return nil
}

func (b *book) add(o *book) {
	b.decisions, b.shorter, b.services, b.carried = b.decisions+o.decisions, b.shorter+o.shorter, b.services+o.services, b.carried+o.carried
}

// check fails if too little was carried over for a meaningful test, in percent of the decisions and of the Services.
func (b *book) check(t *testing.T, decisions, services int) {
	t.Helper()
	t.Logf("%d of %d decisions left out %d of %d Services", b.shorter, b.decisions, b.carried, b.services)
	if 100*b.shorter < decisions*b.decisions || 100*b.carried < services*b.services {
		t.Errorf("want %d%% of the decisions and %d%% of the Services", decisions, services)
	}
}

// TestLedgerHistory plays random histories of ordinary operation: the pools stay;
// Services come, are annotated and go, one or two at a time.
func TestLedgerHistory(t *testing.T) {
	histories := 20
	if testing.Short() {
		histories = 4
	}
	first, histories := seeds(t, histories)
	var all book
	for seed := first; seed < first+uint64(histories); seed++ {
		all.add(playDays(t, seed))
	}
	if histories > 1 {
		all.check(t, 80, 50)
	}
}

// FuzzLedger compares a Ledger with Assign through a cluster's ordinary days;
// FuzzHistory covers its worst hours.
//
// One of the two finds each of these planted bugs. A Service is carried over although
// another object refers to its address (one bug for each place where addresses
// are), its id or its name, or although its Revision or the pools changed. A
// Service is carried over before its status shows what it holds, although it shares, joins,
// asks for renewal or to keep its address, or although its pool is being deleted or gone. A
// carried address is not taken, not counted, counted for the wrong quota, counted although
// the pool avoids it, or stays counted after invalidation. The next free address is missed;
// assignments go to the neighbouring Service. The test also fails if nothing is carried over.
func FuzzLedger(f *testing.F) {
	for seed := range uint64(2) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { playDays(t, seed) })
}

func playDays(t *testing.T, seed uint64) *book {
	h := newHistory(seed)
	h.mild, h.paused, h.alien = false, true, true // no pauses, and only the Ledger is checked
	h.edit(h.found)
	for step := range stepsOfHistory {
		h.edit(func() { h.days(seed%2 == 0) })
		c := h.controllers[0]
		c.watch(h.worlds, func(_, to int) int { return to })
		r := &run{controller: c, seen: c.sees(h.worlds), dies: h.oneIn(10)}
		r.state = r.seen.compile(time.Unix(int64(step)*30, 0))
		r.result = Assign(r.state)
		if err := h.book.compare(r.state, r.result); err != nil {
			t.Fatalf("HISTORY_SEED=%d, step %d: %v", seed, step, err)
		}
		h.carryOut(r)
	}
	return h.book
}

// found makes some Services, and pools of which the small ones run out.
func (h *history) found() {
	wide := with(pool("wide", "10.0.0.250-10.0.1.90", "2001:db8::-2001:db8::ff"), func(p *lb.Pool) { p.AvoidBuggyIPs = true })
	bounded := with(pool("bounded", "10.0.2.0-10.0.2.9", "2001:db8::ff00-2001:db8::ff09"), func(p *lb.Pool) {
		p.Quota, p.ReuseDelay = map[lb.Family]int{lb.IPv4: 3}, 5*time.Minute
		p.Allocation = &lb.Allocation{Priority: 1, ByNamespace: true, NamespaceSelectors: []lb.Selector{{{Key: "team", Operator: lb.In, Values: []string{"x"}}}}}
	})
	inner := with(pool("inner", "10.1.0.0-10.1.0.3"), func(p *lb.Pool) { p.Internal, p.MaxServices = true, 2 })
	h.Pools = []poolObject{{Pool: bounded, age: 1}, {Pool: inner, age: 2}, {Pool: wide}}
	h.Namespaces = map[string]map[string]string{"a": {"team": "x"}, "b": {"team": "y"}}
	for range 40 {
		h.arrive()
	}
}

func (h *history) days(unkept bool) {
	for range 1 + h.IntN(2) {
		h.day()
	}
	if unkept { // a Service that may not keep a FloatingIP asks for it for ever
		h.FloatingIPs = slices.DeleteFunc(h.FloatingIPs, func(f floatingObject) bool { return f.ServiceName == f.Key.Name })
	}
}

func (h *history) day() {
	s := &h.world
	svc := &s.Services[h.IntN(len(s.Services))]
	someone := s.Services[h.IntN(len(s.Services))].Service
	switch what := h.IntN(100); {
	case what < 40 || len(s.Services) < 20:
		h.arrive()
	case what < 70 || len(s.Services) > 90:
		h.leave(h.IntN(len(s.Services)))
	case what < 74:
		h.want(&svc.Service) // anything
	case what < 80:
		svc.Labels, svc.Local = pick(h, nil, map[string]string{"app": "x"}), h.oneIn(2)
	case what < 84:
		svc.RequestedAddresses = slices.Concat(someone.Addresses)
	case what < 86:
		svc.LoadBalancerID = someone.UID
	case what < 88:
		svc.Renew, svc.RequestedPool = h.oneIn(2), pick(h, "", "wide", "bounded")
	case what == 88:
		s.Namespaces = map[string]map[string]string{"a": {"team": pick(h, "x", "y")}, "b": {"team": pick(h, "x", "y")}}
	case what < 90:
		svc.Addresses = pick(h, nil, someone.Addresses)
	case what < 91 && len(s.FloatingIPs) > 0:
		s.FloatingIPs[0].Addresses = someone.Addresses
	case what < 92:
		s.Reserved = map[netip.Addr]lb.Key{h.anyOf(someone): {Namespace: "z", Name: "z"}}
	case what < 93:
		s.Reserved = nil
	case what < 95:
		s.Pools[0].Quota = map[lb.Family]int{lb.IPv4: h.IntN(5)}
	default:
		h.editFloating()
		if len(s.FloatingIPs) > 0 && h.oneIn(3) {
			f := &s.FloatingIPs[h.IntN(len(s.FloatingIPs))]
			f.Families, f.Wanted = []lb.Family{lb.IPv4}, []netip.Addr{h.anyOf(someone)}
		}
	}
}

// arrive adds a Service without special requests.
func (h *history) arrive() {
	h.born++
	svc := lb.Service{
		Key: lb.Key{Namespace: pick(h, "a", "b"), Name: fmt.Sprintf("s%03d", h.IntN(1000)*1000+h.born)}, UID: fmt.Sprintf("u%03d", h.born),
		Created: time.Unix(int64(h.born/3), 0), Families: pick(h, []lb.Family{lb.IPv4}, []lb.Family{lb.IPv6}, []lb.Family{lb.IPv4, lb.IPv6}),
		FamilyPolicy: pick(h, lb.SingleStack, lb.PreferDualStack), Ports: []lb.Port{{Protocol: "TCP", Port: 80 + uint16(h.IntN(3))}},
		Wish: lb.Wish{Internal: h.oneIn(20), KeepFloatingIP: h.oneIn(20), MaxShared: 2},
	}
	if h.oneIn(10) {
		svc.LoadBalancerID = pick(h, "u001", "u002", "u003")
	}
	h.add(svc)
}

// anyOf returns an IPv4 address of the Service, or any address.
func (h *history) anyOf(svc lb.Service) netip.Addr {
	if len(svc.Addresses) > 0 && svc.Addresses[0].Is4() {
		return svc.Addresses[0]
	}
	return h.address()
}
