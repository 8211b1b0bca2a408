package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// choose finds addresses for the missing families: first what the subject had
// last, then what it may share, then free addresses of the pools that may serve
// it. One pool that has all families is preferred; otherwise each family comes
// from the first pool that has it. It overwrites missing.
func (a *assigner) choose(s *subject, missing []int, first *supply) (got perFamily, r *refusal) {
	if r := a.unseen(s); r != nil {
		return got, r
	}
	candidates, refused := a.candidates(s, make([]*supply, 0, 8))
	if i := slices.Index(candidates, first); i > 0 {
		candidates = slices.Insert(slices.Delete(candidates, i, i+1), 0, first)
	}
	var clash *refusal
	missing = slices.DeleteFunc(missing, func(f int) bool {
		var r *refusal
		got[f], r = a.known(s, s.Families[f], candidates)
		if clash == nil {
			clash = r
		}
		return got[f].IsValid()
	})
	if s.joins {
		if len(missing) > 0 {
			return got, a.explainJoin(s, s.Families[missing[0]], clash)
		}
		return got, nil
	}
	if len(missing) == 0 || a.fresh(s, missing, candidates, &got) {
		return got, nil
	}
	for _, f := range missing {
		if !got[f].IsValid() {
			return got, a.explain(s, s.Families[f], candidates, refused, clash)
		}
	}
	return got, nil
}

// known returns an address that the subject had last or that it may share,
// and otherwise why it may not share one.
func (a *assigner) known(s *subject, family lb.Family, candidates []*supply) (netip.Addr, *refusal) {
	for _, last := range a.memory.own[s.Key] {
		pool := a.index.find(last.Address)
		if lb.FamilyOf(last.Address) != family || !slices.Contains(candidates, pool) || pool.avoids(last.Address) || s.joins &&
			len(a.holders[last.Address].services) == 0 {
			continue
		}
		if a.admits(s, last.Address, pool) == nil {
			return last.Address, nil
		}
	}
	var clash *refusal
	if s.ring == nil {
		return netip.Addr{}, nil
	}
	for _, addr := range s.ring.worthwhile(s, family) {
		pool := a.index.find(addr)
		may := slices.Contains(candidates, pool) || s.joins && a.joinable(s, addr, pool)
		if !may || s.holds(addr) || pool != nil && pool.avoids(addr) {
			continue
		}
		r := a.admits(s, addr, pool)
		if r == nil {
			return addr, nil
		}
		if clash == nil {
			clash = refuse(r.reason, "cannot share %s, %s", addr, r.message)
		}
	}
	return netip.Addr{}, clash
}

// joinable reports whether a Service may join the holders of the address, as if it had requested that address.
func (a *assigner) joinable(s *subject, addr netip.Addr, pool *supply) bool {
	if s.RequestedPool != "" && (pool == nil || pool.Name != s.RequestedPool) {
		return false
	}
	if a.holders[addr].floating > 0 {
		return pool == nil || pool.mismatch(s) == ""
	}
	return pool != nil && a.poolRefusal(s, pool, true) == ""
}

// fresh fills got from the candidates and reports whether one pool had all families.
func (a *assigner) fresh(s *subject, missing []int, candidates []*supply, got *perFamily) bool {
	pick := func(pool *supply, f int) (netip.Addr, bool) {
		if len(pool.Quota) > 0 && a.overQuota(s, pool, s.Families[f], holders{}) != nil {
			return netip.Addr{}, false
		}
		return a.free(s, pool, s.Families[f])
	}
	for _, pool := range candidates {
		all, here := true, *got
		for _, f := range missing {
			addr, ok := pick(pool, f)
			all = all && ok
			here[f] = addr
			if ok && !got[f].IsValid() {
				got[f] = addr
			}
		}
		if all {
			*got = here
			return true
		}
	}
	return false
}

// refused is a pool that may not serve a Service, with the reason.
type refused struct {
	pool, why string
}

// candidates appends the pools that may serve the subject to may, and returns the others with their reasons.
func (a *assigner) candidates(s *subject, may []*supply) (_ []*supply, not []refused) {
	for _, pool := range a.supplies {
		if s.RequestedPool != "" && s.RequestedPool != pool.Name {
			continue
		}
		if why := a.poolRefusal(s, pool, s.RequestedPool != ""); why != "" {
			not = append(not, refused{pool.Name, why})
			continue
		}
		may = append(may, pool)
	}
	return may, not
}

// explain returns why no pool has an address of the family for the subject.
func (a *assigner) explain(s *subject, family lb.Family, candidates []*supply, not []refused, clash *refusal) *refusal {
	reason := lb.NoFamily
	var without []refused
	for _, pool := range candidates {
		why, r := a.shortage(s, pool, family)
		if r != lb.NoFamily && (reason == lb.NoFamily || reason == lb.PoolExhausted) {
			reason = r
		}
		without = append(without, refused{pool.Name, why})
	}
	not = append(without, not...)
	if r := a.unknown(s); r != nil {
		return r
	}
	asked := s.RequestedPool != ""
	switch {
	case asked && len(not) == 0:
		return refuse(lb.UnknownPool, "asks for pool %q, which does not exist", s.RequestedPool)
	case asked && len(candidates) == 0:
		return refuse(lb.PoolNotAllowed, "asks for pool %q, which %s", s.RequestedPool, not[0].why)
	case len(not) == 0:
		return refuse(lb.NoPool, "there is no IPAddressPool: create one")
	case len(candidates) == 0:
		reason = lb.NoPool
	}
	message := fmt.Sprintf("no %s address: %s", family, listRefused(not))
	if clash != nil && len(candidates) > 0 {
		return refuse(clash.reason, "%s; otherwise %s", clash.message, message)
	}
	return &refusal{reason: reason, message: message}
}

// shortage returns why a pool that may serve the subject has no address of the family for it.
func (a *assigner) shortage(s *subject, pool *supply, family lb.Family) (string, lb.Reason) {
	if !pool.has(family) {
		return "has no " + string(family) + " range", lb.NoFamily
	}
	if a.overQuota(s, pool, family, holders{}) != nil {
		return fmt.Sprintf("gives namespace %q no more than its quota of %d", s.Key.Namespace, pool.Quota[family]), lb.QuotaExceeded
	}
	if until := a.nextFree(pool, family); !until.IsZero() {
		return "has none but released ones, which reuseDelay keeps until " + stamp(until), lb.Quarantined
	}
	return "is full", lb.PoolExhausted
}

// unknown returns a refusal if the Service names something that matches no pool.
func (a *assigner) unknown(s *subject) *refusal {
	for _, w := range s.PoolWishes {
		if len(w.Pools) == 0 {
			return refuse(w.Reason, "asks for %s, which no pool stands for: add it to spec.aliases of one", w.Text)
		}
	}
	if s.Class == "" {
		return nil
	}
	var known []string
	for _, pool := range a.state.Pools {
		known = append(known, pool.Classes...)
	}
	slices.Sort(known)
	if known = slices.Compact(known); slices.Contains(known, s.Class) {
		return nil
	}
	if len(known) == 0 {
		return refuse(lb.UnknownClass, "asks for class %q, but no pool has spec.classes", s.Class)
	}
	return refuse(lb.UnknownClass, "asks for class %q, which no pool has in spec.classes; known are: %s", s.Class, lb.SomeOf(known))
}

// explainJoin returns why the Service cannot join the load balancer that it names.
func (a *assigner) explainJoin(s *subject, family lb.Family, clash *refusal) *refusal {
	if clash != nil {
		return clash
	}
	return refuse(lb.UnknownLoadBalancer, "asks to share load balancer %s, which holds no %s address for it", s.LoadBalancerID, family)
}

// listRefused lists the pools for a message. The message must not grow with the cluster.
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
