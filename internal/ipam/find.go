package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// lack is why a Service cannot have what it wants.
type lack struct {
	reason  lb.Reason
	message string
}

// find returns the addresses to give to a Service that holds some already, by
// the index of their family, and what it lacks besides. A request that cannot be
// met gives nothing at all: it never falls back to something else.
func (a *assigner) find(svc *lb.Service, held []netip.Addr) ([]netip.Addr, *lack) {
	if svc.Problem != nil {
		return nil, &lack{svc.Problem.Reason, svc.Problem.Message}
	}
	got, l := a.findRequested(svc, held)
	if l != nil {
		return nil, l
	}
	var missing []int
	for f := range svc.Families {
		if !held[f].IsValid() && !got[f].IsValid() {
			missing = append(missing, f)
		}
	}
	if len(missing) == 0 {
		return got, nil
	}
	chosen, l := a.choose(svc, missing, companion(a.index, held, got))
	if l != nil && svc.FamilyPolicy != lb.PreferDualStack {
		return nil, l
	}
	for f, addr := range chosen {
		if addr.IsValid() {
			got[f] = addr
		}
	}
	return got, l
}

// findRequested returns the addresses asked for by value that the Service does not hold.
func (a *assigner) findRequested(svc *lb.Service, held []netip.Addr) ([]netip.Addr, *lack) {
	got := make([]netip.Addr, len(svc.Families))
	for _, want := range svc.RequestedAddresses {
		f := familyIndex(svc, want)
		if f < 0 {
			return nil, &lack{lb.InvalidRequest, fmt.Sprintf("asks for %s, a family of which the Service has no cluster IP", want)}
		}
		if held[f] == want {
			continue
		}
		if l := a.grantable(svc, want); l != nil {
			return nil, l
		}
		got[f] = want
	}
	return got, nil
}

// grantable says why a Service cannot be given the address it asks for, or nil.
func (a *assigner) grantable(svc *lb.Service, want netip.Addr) *lack {
	pool := a.index.find(want)
	if owner, taken := a.owners[want]; taken && owner != svc.Key {
		return &lack{lb.AddressInUse, fmt.Sprintf("asks for %s, which Service %s holds", want, owner)}
	}
	if pool == nil {
		return &lack{lb.AddressNotInPool, fmt.Sprintf("asks for %s, which is in none of the pools: ask for another address or add it to a pool", want)}
	}
	if svc.RequestedPool != "" && svc.RequestedPool != pool.Name {
		return &lack{lb.AddressNotInPool, fmt.Sprintf("asks for %s and for pool %q, but the address is in pool %q: ask for one of the two", want, svc.RequestedPool, pool.Name)}
	}
	if why := pool.refusal(svc, a.state.Namespaces, true); why != "" {
		return &lack{lb.PoolNotAllowed, fmt.Sprintf("asks for %s, but pool %q %s", want, pool.Name, why)}
	}
	if pool.avoids(want) {
		return &lack{lb.PoolNotAllowed, fmt.Sprintf("asks for %s, but pool %q has avoidBuggyIPs on", want, pool.Name)}
	}
	return nil
}

// companion returns the pool that the other address of a Service comes from, if any.
func companion(x poolIndex, held, got []netip.Addr) *supply {
	for _, addr := range slices.Concat(got, held) {
		if s := x.find(addr); s != nil {
			return s
		}
	}
	return nil
}

// choose takes the missing families from the pools that may serve the Service:
// from one pool if one has them all, else each from the first that has it.
func (a *assigner) choose(svc *lb.Service, missing []int, first *supply) ([]netip.Addr, *lack) {
	candidates, refused := a.candidates(svc)
	if i := slices.Index(candidates, first); i > 0 {
		candidates = slices.Insert(slices.Delete(candidates, i, i+1), 0, first)
	}
	got := make([]netip.Addr, len(svc.Families))
	for _, s := range candidates {
		all := true
		for _, f := range missing {
			addr, ok := s.free(svc.Families[f], a.owners)
			all = all && ok
			if ok && !got[f].IsValid() {
				got[f] = addr
			}
		}
		if !all {
			continue
		}
		for _, f := range missing {
			got[f], _ = s.free(svc.Families[f], a.owners)
		}
		return got, nil
	}
	for _, f := range missing {
		if !got[f].IsValid() {
			return got, a.explain(svc, svc.Families[f], candidates, refused)
		}
	}
	return got, nil
}

// refused is a pool that may not serve a Service, and why.
type refused struct {
	pool, why string
}

// candidates returns the pools that may serve the Service, and the others with their reason.
func (a *assigner) candidates(svc *lb.Service) (may []*supply, not []refused) {
	for _, s := range a.supplies {
		if svc.RequestedPool != "" && svc.RequestedPool != s.Name {
			continue
		}
		if why := s.refusal(svc, a.state.Namespaces, svc.RequestedPool != ""); why != "" {
			not = append(not, refused{s.Name, why})
			continue
		}
		may = append(may, s)
	}
	return may, not
}

// explain says why no pool has an address of the family for the Service.
func (a *assigner) explain(svc *lb.Service, family lb.Family, candidates []*supply, not []refused) *lack {
	reason := lb.NoFamily
	var without []refused
	for _, s := range candidates {
		why := "has no " + string(family) + " range"
		if s.has(family) {
			why, reason = "is full", lb.PoolExhausted
		}
		without = append(without, refused{s.Name, why})
	}
	not = append(without, not...)
	asked := svc.RequestedPool != ""
	switch {
	case asked && len(not) == 0:
		return &lack{lb.UnknownPool, fmt.Sprintf("asks for pool %q, which does not exist", svc.RequestedPool)}
	case asked && len(candidates) == 0:
		return &lack{lb.PoolNotAllowed, fmt.Sprintf("asks for pool %q, which %s", svc.RequestedPool, not[0].why)}
	case len(not) == 0:
		return &lack{lb.NoPool, "there is no IPAddressPool: create one"}
	case len(candidates) == 0:
		reason = lb.NoPool
	}
	return &lack{reason, fmt.Sprintf("no %s address: %s", family, listRefused(not))}
}

// listRefused writes the pools for a message, which must not grow with the cluster.
func listRefused(not []refused) string {
	const most = 8
	var words []string
	for _, r := range not[:min(most, len(not))] {
		words = append(words, fmt.Sprintf("pool %q %s", r.pool, r.why))
	}
	if more := len(not) - len(words); more > 0 {
		words = append(words, fmt.Sprintf("%d more pools refuse too", more))
	}
	return strings.Join(words, "; ")
}
