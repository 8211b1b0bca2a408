package config

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// pool is an lb.Pool with what the advertisements need to know about it.
type pool struct {
	lb.Pool
	// entries as written, before addresses of other pools are removed.
	entries []lb.Range
}

// compilePools returns the pools, oldest first. A pool that is being deleted
// owns its ranges until it is gone. A pool without a usable entry is still a pool
// that Services and advertisements may name.
func compilePools(r *report, objects []*v1beta1.IPAddressPool, memories map[string]*v1beta1.PoolMemory, nodes map[string]lb.Node) []pool {
	var pools []pool
	owners, lost := unusableRanges(), make([]overlaps, len(objects))
	for n, o := range oldestFirst(objects) {
		object := lb.Object{Kind: KindPool, Name: o.Name}
		p := pool{Pool: lb.Pool{
			Name:          o.Name,
			Labels:        o.Labels,
			AutoAssign:    o.Spec.AutoAssign == nil || *o.Spec.AutoAssign,
			AvoidBuggyIPs: o.Spec.AvoidBuggyIPs,
			Allocation:    compileAllocation(r, object, o.Spec.ServiceAllocation),
			Deleting:      o.DeletionTimestamp != nil,
			PoolTerms:     compileTerms(r, object, o, memories[o.Name]),
		}}
		freeze(r, object, o, &p.Pool)
		for i, entry := range o.Spec.Addresses {
			e, note, err := parseRange(entry)
			if err != nil {
				r.fault(object, lb.InvalidAddresses, "spec.addresses[%d]: %v", i, err)
				continue
			}
			if note != "" {
				r.note(object, lb.HostBitsIgnored, "spec.addresses[%d]: %s", i, note)
			}
			p.entries = append(p.entries, e)
			p.Ranges = append(p.Ranges, owners.claim(owner{pool: o.Name}, e, &lost[n])...)
		}
		pools = append(pools, p)
	}
	ofNodes := owners.nodeAddresses(nodes)
	for i := range pools {
		p := &pools[i]
		p.NodeAddresses = ofNodes[p.Name]
		for a, node := range p.NodeAddresses {
			lost[i].add(owner{unusable: fmt.Sprintf("node %q", node)}, lb.Range{From: a, To: a})
		}
		lost[i].report(r, lb.Object{Kind: KindPool, Name: p.Name})
	}
	return pools
}

func compileAllocation(r *report, object lb.Object, a *v1beta1.ServiceAllocation) *lb.Allocation {
	if a == nil {
		return nil
	}
	return &lb.Allocation{
		Priority:           a.Priority,
		ByNamespace:        len(a.Namespaces)+len(a.NamespaceSelectors) > 0,
		Namespaces:         slices.Clone(a.Namespaces),
		NamespaceSelectors: compileSelectors(r, object, "spec.serviceAllocation.namespaceSelectors", a.NamespaceSelectors),
		ServiceSelectors:   compileSelectors(r, object, "spec.serviceAllocation.serviceSelectors", a.ServiceSelectors),
	}
}

// claims are ranges with their owners: disjoint, ordered by address.
type claims []claimed

type claimed struct {
	lb.Range
	owner owner
}

// String says why no pool can have the range.
func (c claimed) String() string { return fmt.Sprintf("%s (%s)", c.Range, c.owner.unusable) }

// owner is the pool that has a range, or why no pool can have it.
type owner struct {
	pool, unusable string
}

// overlaps maps the owner of ranges to the parts that another pool claimed too.
type overlaps map[owner][]lb.Range

// at returns the index of the first range that does not end before the address.
func (c claims) at(a netip.Addr) int {
	i, _ := slices.BinarySearchFunc(c, a, func(have claimed, a netip.Addr) int { return have.To.Compare(a) })
	return i
}

// claim gives the owner the unclaimed parts of the range, and records the rest in lost.
func (c *claims) claim(by owner, want lb.Range, lost *overlaps) []lb.Range {
	i := c.at(want.From)
	var got []lb.Range
	first, from := i, want.From
	for ; i < len(*c) && from.IsValid() && (*c)[i].Overlaps(want); i++ {
		have := (*c)[i]
		if from.Less(have.From) {
			got = append(got, lb.Range{From: from, To: have.From.Prev()})
		}
		part := lb.Range{From: later(have.From, want.From), To: have.To}
		if want.To.Less(part.To) {
			part.To = want.To
		}
		lost.add(have.owner, part)
		from = have.To.Next()
	}
	if from.IsValid() && !want.To.Less(from) {
		got = append(got, lb.Range{From: from, To: want.To})
	}
	mine := make([]claimed, len(got))
	for j, g := range got {
		mine[j] = claimed{g, by}
	}
	merged := slices.Concat((*c)[first:i], mine)
	slices.SortFunc(merged, func(a, b claimed) int { return a.From.Compare(b.From) })
	*c = slices.Replace(*c, first, i, merged...)
	return got
}

func later(a, b netip.Addr) netip.Addr {
	if a.Less(b) {
		return b
	}
	return a
}

func (o *overlaps) add(by owner, part lb.Range) {
	if *o == nil {
		*o = overlaps{}
	}
	(*o)[by] = append((*o)[by], part)
}

// report reports what the pool lost. A loss to the pool itself is harmless.
func (o overlaps) report(r *report, object lb.Object) {
	var unusable []claimed
	for by, parts := range o {
		slices.SortFunc(parts, lb.Range.Compare)
		switch {
		case by.unusable != "":
			for _, part := range parts {
				unusable = append(unusable, claimed{part, by})
			}
		case by.pool == object.Name:
			r.note(object, lb.OverlappingAddresses, "spec.addresses holds %s more than once: once is enough", lb.SomeOf(parts))
		default:
			r.fault(object, lb.OverlappingAddresses, "IPAddressPool %q is older and keeps %s: take that out of one of the two pools",
				by.pool, lb.SomeOf(parts))
		}
	}
	if len(unusable) > 0 {
		slices.SortFunc(unusable, func(a, b claimed) int { return a.Compare(b.Range) })
		r.fault(object, lb.AddressNotUsable, "spec.addresses holds what is not given to Services: %s: take that out", lb.SomeOf(unusable))
	}
}
