package ipam

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// FuzzHistory drives Assign through a random history: Services and pools come,
// change and go, statuses are lost, doubled and written by others, and each
// result is applied before the next step. The invariants are in invariant_test.go,
// judged by brute force over pools of a few addresses. A failing seed is printed
// as the name of the case; -run FuzzHistory/seed#SEED plays it again.
//
// Tried on purpose, and caught here: giving before all that is held is reserved;
// letting go of an address that was cut from its pool; giving away what another
// Service leaves in the same decision; giving a reserved address; passing over a
// free address; the younger of two holders keeping; taking another address where
// the requested one cannot be had; opening a pool whose namespaces match nothing
// or are unknown; ignoring autoAssign, avoidBuggyIPs and deletion of a pool;
// giving RequireDualStack one family; naming a reason before the last address is
// given; moving a Service because its pool's range went to another one.
func FuzzHistory(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		h := &history{Rand: rand.New(rand.NewPCG(seed, 0))}
		for step := range 150 {
			h.change()
			before := h.state
			result := Assign(before)
			after := applied(before, result)
			err := checkAll(before, result)
			if err == nil {
				err = checkAgain(before, result, Assign(after))
			}
			if err != nil {
				t.Fatalf("seed %d, step %d: %v\npools: %s\nservices: %s\nreserved: %v\nresult:\n%s", seed, step, err,
					cmp.Diff(nil, before.Pools), cmp.Diff(nil, before.Services), before.Reserved, cmp.Diff(nil, text(result)))
			}
			h.state = after
		}
	})
}

// history is a world that changes at random.
type history struct {
	*rand.Rand
	state lb.State
	born  int
}

func (h *history) oneIn(n int) bool { return h.IntN(n) == 0 }

func pick[T any](h *history, from ...T) T { return from[h.IntN(len(from))] }

// change does one thing that users, administrators or accidents do.
func (h *history) change() {
	s := &h.state
	s.Services, s.Pools = slices.Clone(s.Services), slices.Clone(s.Pools)
	if s.Namespaces == nil {
		s.Namespaces = map[string]map[string]string{"a": {"team": "a"}, "b": {"team": "b"}}
	}
	switch what := h.IntN(20); {
	case what < 6 || len(s.Services) == 0:
		h.born++
		svc := lb.Service{
			Key:     lb.Key{Namespace: pick(h, "a", "b", "unknown"), Name: fmt.Sprintf("s%03d", h.born)},
			Created: time.Unix(int64(h.born/3), 0),
		}
		h.want(&svc)
		s.Services = append(s.Services, svc)
		slices.SortFunc(s.Services, func(a, b lb.Service) int { return a.Key.Compare(b.Key) })
	case what < 9:
		i := h.IntN(len(s.Services))
		s.Services = slices.Delete(s.Services, i, i+1)
	case what < 12:
		h.want(&s.Services[h.IntN(len(s.Services))])
	case what == 12:
		// A stale write, a restore or another controller.
		s.Services[h.IntN(len(s.Services))].Addresses = pick(h, nil, s.Services[h.IntN(len(s.Services))].Addresses, []netip.Addr{h.address(), h.address()})
	case what == 13:
		s.Reserved = map[netip.Addr]lb.Key{h.address(): {Namespace: "z", Name: "z"}}
	default:
		h.editPools()
	}
}

// want changes what a Service wants, in any way the API allows.
func (h *history) want(svc *lb.Service) {
	svc.Families = pick(h, []lb.Family{lb.IPv4}, []lb.Family{lb.IPv6}, []lb.Family{lb.IPv4, lb.IPv6}, []lb.Family{lb.IPv6, lb.IPv4}, nil)
	svc.FamilyPolicy = pick(h, lb.SingleStack, lb.PreferDualStack, lb.RequireDualStack)
	svc.Labels = pick(h, nil, map[string]string{"app": "x"})
	svc.RequestedPool, svc.RequestedAddresses, svc.Problem = "", nil, nil
	if h.oneIn(3) {
		svc.RequestedPool = pick(h, "p0", "p1", "p2", "p3", "nowhere")
	}
	if h.oneIn(3) {
		svc.RequestedAddresses = []netip.Addr{h.address()}
	}
	if h.oneIn(15) {
		svc.Problem = &lb.Problem{Reason: lb.InvalidRequest, Message: "garbage"}
	}
}

// editPools deals the addresses of a few blocks anew, so that ranges shrink,
// grow, vanish and go from one pool to another, and are disjoint at every step.
func (h *history) editPools() {
	pools := make([]lb.Pool, 1+h.IntN(4))
	for i := range pools {
		pools[i] = lb.Pool{
			Name: fmt.Sprintf("p%d", i), AutoAssign: !h.oneIn(4), AvoidBuggyIPs: h.oneIn(3), Deleting: h.oneIn(6),
			Allocation: pick(h, nil, nil, &lb.Allocation{Priority: h.IntN(3)}, h.allocation()),
		}
	}
	for _, block := range []string{"10.0.0.254", "10.0.1.3", "2001:db8::", "2001:db8::ff00", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc"} {
		r := lb.Range{From: netip.MustParseAddr(block)}
		r.To = r.From
		for range h.IntN(4) {
			r.To = r.To.Next()
		}
		if i := h.IntN(len(pools) + 1); i < len(pools) {
			pools[i].Ranges = append(pools[i].Ranges, r)
		}
	}
	h.Shuffle(len(pools), func(i, j int) { pools[i], pools[j] = pools[j], pools[i] })
	h.state.Pools = pools
}

func (h *history) allocation() *lb.Allocation {
	a := &lb.Allocation{Priority: h.IntN(3), ByNamespace: h.oneIn(2)}
	if a.ByNamespace {
		a.Namespaces = pick(h, nil, []string{"a"})
		a.NamespaceSelectors = pick(h, nil, []lb.Selector{{{Key: "team", Operator: lb.NotIn, Values: []string{"a"}}}})
	}
	if h.oneIn(2) {
		a.ServiceSelectors = []lb.Selector{{{Key: "app", Operator: lb.Exists}}}
	}
	return a
}

// address returns one in or near the blocks of editPools.
func (h *history) address() netip.Addr {
	a := netip.MustParseAddr(pick(h, "10.0.0.254", "10.0.1.3", "2001:db8::", "2001:db8::ff00", "203.0.113.1"))
	for range h.IntN(3) {
		a = a.Next()
	}
	return a
}
