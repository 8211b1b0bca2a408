package config

import (
	"cmp"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pool is an lb.Pool with what advertisements and externalIPs need of it.
type pool struct {
	lb.Pool
	// entries are the ranges as written, including addresses that belong to other pools.
	entries []lb.Range
	// lost are the parts of entries that belong to others.
	lost lostRanges
}

// compilePools returns the pools: those that are not being deleted first, each kind oldest first.
//
// A pool that is being deleted keeps its ranges until it is gone, except for addresses that another pool claims. So a
// pool can be renamed, split or replaced by a new one. A pool without a usable entry is still a pool, which Services
// and advertisements may name.
func compilePools(
	r *problemList,
	objects []*v1beta1.IPAddressPool,
	memories map[string]*v1beta1.PoolMemory,
	undeclared v1beta1.UndeclaredPorts,
) []*pool {
	var pools []*pool
	owned := unusableRanges()
	for _, o := range deletingLast(objects) {
		p := compilePool(r, o, memories[o.Name], undeclared)
		claimRanges(r, o, p, &owned)
		pools = append(pools, p)
	}

	for _, p := range pools {
		p.lost.reportTo(r, lb.Object{Kind: KindPool, Name: p.Name}, p.Deleting)
	}

	return pools
}

// deletingLast orders pools by their right to addresses that several of them claim.
func deletingLast(objects []*v1beta1.IPAddressPool) []*v1beta1.IPAddressPool {
	var active, deleting []*v1beta1.IPAddressPool
	for _, o := range oldestFirst(objects) {
		if o.DeletionTimestamp == nil {
			active = append(active, o)
		} else {
			deleting = append(deleting, o)
		}
	}

	return append(active, deleting...)
}

// compilePool reads a pool, without its ranges.
func compilePool(
	r *problemList,
	o *v1beta1.IPAddressPool,
	memory *v1beta1.PoolMemory,
	undeclared v1beta1.UndeclaredPorts,
) *pool {
	object := lb.Object{Kind: KindPool, Name: o.Name}
	undeclared = cmp.Or(o.Spec.UndeclaredPorts, undeclared)
	compiled := lb.Pool{
		Name:          o.Name,
		Labels:        o.Labels,
		AutoAssign:    valueOr(o.Spec.AutoAssign, true),
		AvoidBuggyIPs: o.Spec.AvoidBuggyIPs,
		Allocation:    compileAllocation(r, object, o.Spec.ServiceAllocation),
		Deleting:      o.DeletionTimestamp != nil,
		PoolTerms:     compileTerms(r, object, o, memory, undeclared),
	}
	return &pool{Pool: compiled, lost: lostRanges{}}
}

// claimRanges gives a pool the parts of its entries that have no owner yet.
func claimRanges(r *problemList, o *v1beta1.IPAddressPool, p *pool, owned *ownedRanges) {
	object := lb.Object{Kind: KindPool, Name: o.Name}
	owner := rangeOwner{pool: o.Name, isActive: !p.Deleting}

	for i, text := range o.Spec.Addresses {
		entry, note, err := parseRange(text)
		if err != nil {
			r.add(object, lb.InvalidAddresses, "spec.addresses[%d]: %v", i, err)
			continue
		}

		if note != "" {
			r.addNote(object, lb.HostBitsIgnored, "spec.addresses[%d]: %s", i, note)
		}

		p.entries = append(p.entries, entry)
		claimed := owned.claim(owner, entry, p.lost)
		p.Ranges = append(p.Ranges, claimed...)
	}
}

// compileAllocation reads the restriction of a pool to namespaces and Services; nil for none.
func compileAllocation(r *problemList, object lb.Object, a *v1beta1.ServiceAllocation) *lb.Allocation {
	if a == nil {
		return nil
	}

	const field = "spec.serviceAllocation."
	return &lb.Allocation{
		Priority:           a.Priority,
		ByNamespace:        len(a.Namespaces)+len(a.NamespaceSelectors) > 0,
		Namespaces:         slices.Clone(a.Namespaces),
		NamespaceSelectors: compileSelectors(r, object, field+"namespaceSelectors", a.NamespaceSelectors),
		ServiceSelectors:   compileSelectors(r, object, field+"serviceSelectors", a.ServiceSelectors),
	}
}

// compileTerms reads the terms on which a pool assigns addresses, and the records in its status and its PoolMemory.
// Invalid records are not ours and are ignored.
func compileTerms(
	r *problemList,
	object lb.Object,
	o *v1beta1.IPAddressPool,
	memory *v1beta1.PoolMemory,
	undeclared v1beta1.UndeclaredPorts,
) lb.PoolTerms {
	t := lb.PoolTerms{
		Internal:   o.Spec.Scope == v1beta1.ScopeInternal,
		Classes:    o.Spec.Classes,
		Tags:       o.Spec.Tags,
		Aliases:    o.Spec.Aliases,
		Reset:      undeclared == v1beta1.UndeclaredReset,
		Open:       undeclared == v1beta1.UndeclaredAllow,
		ReuseDelay: valueOr(o.Spec.ReuseDelay, metav1.Duration{}).Duration,
		Quota:      compileQuota(o.Spec.Quota),
		Retained:   compileRetained(o.Status.Retained),
	}

	if len(o.Spec.SourceRanges) > 0 {
		allowed := readSources(o.Spec.SourceRanges)
		allowed.reportTo(r, object, "spec.sourceRanges")
		t.Restricted = true
		t.SourceRanges = allowed.prefixes
	}

	sharing := o.Spec.Sharing
	if sharing != nil {
		t.ShareAcross = sharing.Scope == v1beta1.ShareCluster
		t.MaxServices = int(sharing.MaxServices)
	}

	// The memory may belong to an earlier pool of the same name.
	if memory != nil && metav1.IsControlledBy(memory, o) {
		t.ReleasedForgotten = memory.Status.Forgotten
		t.Released = compileReleased(memory.Status.Released)
	}

	return t
}

// compileQuota returns the limits by family; nil for none.
func compileQuota(q *v1beta1.Quota) map[lb.Family]int {
	if q == nil || q.PerNamespace == nil {
		return nil
	}

	out := map[lb.Family]int{}
	if q.PerNamespace.IPv4 != nil {
		out[lb.IPv4] = int(*q.PerNamespace.IPv4)
	}

	if q.PerNamespace.IPv6 != nil {
		out[lb.IPv6] = int(*q.PerNamespace.IPv6)
	}

	return out
}

// compileReleased reads the releases in a PoolMemory.
func compileReleased(list []v1beta1.ReleasedAddress) (out []lb.Release) {
	for _, r := range list {
		a, err := parseAddr(r.Address)
		if err != nil || r.Time.IsZero() {
			continue
		}

		out = append(out, lb.Release{
			Address: a,
			Time:    r.Time.Time.Time,
			Holder:  lb.ParseKey(r.Service),
			UID:     r.UID,
		})
	}

	return out
}

// compileRetained reads the retained addresses in the status of a pool.
func compileRetained(list []v1beta1.RetainedAddress) (out []lb.Retention) {
	for _, r := range list {
		a, err := parseAddr(r.Address)
		if err != nil || r.Since.IsZero() {
			continue
		}

		out = append(out, lb.Retention{
			Address: a,
			Holder:  lb.ParseKey(r.Service),
			Since:   r.Since.Time.Time,
		})
	}

	return out
}

// memoriesByName returns the PoolMemories by their names, which are the names of their pools.
func memoriesByName(objects []*v1beta1.PoolMemory) map[string]*v1beta1.PoolMemory {
	out := make(map[string]*v1beta1.PoolMemory, len(objects))
	for _, m := range objects {
		out[m.Name] = m
	}
	return out
}
