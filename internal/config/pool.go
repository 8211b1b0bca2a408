package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pool is an lb.Pool with what the advertisements need to know about it.
type pool struct {
	lb.Pool
	// entries as written, before addresses of other pools are removed.
	entries []lb.Range
	// lost is what of them others have.
	lost overlaps
}

// compilePools returns the pools, the living ones before those that are being deleted, each oldest first. A pool that
// is being deleted keeps its ranges until it is gone, except for what a living pool claims: so a pool can be renamed,
// split or replaced by a new one. A pool without a usable entry is still a pool that Services and advertisements may
// name.
func compilePools(r *report, objects []*v1beta1.IPAddressPool, memories map[string]*v1beta1.PoolMemory,
	undeclared v1beta1.UndeclaredPorts) []*pool {
	var pools []*pool
	var owners claims
	for _, n := range neverHosts {
		p := netip.MustParsePrefix(n.prefix)
		owners = append(owners, claimed{lb.Range{From: p.Addr(), To: lastOf(p)}, owner{unusable: n.what}})
	}
	for _, o := range livingFirst(objects) {
		object := lb.Object{Kind: KindPool, Name: o.Name}
		p := &pool{lost: overlaps{}, Pool: lb.Pool{
			Name:          o.Name,
			Labels:        o.Labels,
			AutoAssign:    valueOr(o.Spec.AutoAssign, true),
			AvoidBuggyIPs: o.Spec.AvoidBuggyIPs,
			Allocation:    compileAllocation(r, object, o.Spec.ServiceAllocation),
			Deleting:      o.DeletionTimestamp != nil,
			PoolTerms:     compileTerms(r, object, o, memories[o.Name], cmp.Or(o.Spec.UndeclaredPorts, undeclared)),
		}}
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
			p.Ranges = append(p.Ranges, owners.claim(owner{pool: o.Name, isLiving: !p.Deleting}, e, p.lost)...)
		}
		pools = append(pools, p)
	}
	for _, p := range pools {
		p.lost.report(r, lb.Object{Kind: KindPool, Name: p.Name}, p.Deleting)
	}
	return pools
}

// livingFirst orders pools by the right to addresses that several of them claim.
func livingFirst(objects []*v1beta1.IPAddressPool) []*v1beta1.IPAddressPool {
	var living, deleting []*v1beta1.IPAddressPool
	for _, o := range oldestFirst(objects) {
		if o.DeletionTimestamp == nil {
			living = append(living, o)
		} else {
			deleting = append(deleting, o)
		}
	}
	return append(living, deleting...)
}

func compileAllocation(r *report, object lb.Object, a *v1beta1.ServiceAllocation) *lb.Allocation {
	if a == nil {
		return nil
	}
	return &lb.Allocation{
		Priority:    a.Priority,
		ByNamespace: len(a.Namespaces)+len(a.NamespaceSelectors) > 0,
		Namespaces:  slices.Clone(a.Namespaces),
		NamespaceSelectors: compileSelectors(
			r,
			object,
			"spec.serviceAllocation.namespaceSelectors",
			a.NamespaceSelectors,
		),
		ServiceSelectors: compileSelectors(r, object, "spec.serviceAllocation.serviceSelectors", a.ServiceSelectors),
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
	// isLiving: the pool is not being deleted.
	isLiving bool
}

// overlaps maps the owner of ranges to the parts that another pool claimed too.
type overlaps map[owner][]lb.Range

// at returns the index of the first range that does not end before the address.
func (c claims) at(a netip.Addr) int {
	i, _ := slices.BinarySearchFunc(c, a, func(have claimed, a netip.Addr) int { return have.To.Compare(a) })
	return i
}

// claim gives the owner the unclaimed parts of the range, and records the rest in lost.
func (c *claims) claim(by owner, want lb.Range, lost overlaps) (got []lb.Range) {
	from := want.From
	for _, have := range (*c)[c.at(want.From):] {
		if !have.Overlaps(want) {
			break
		}
		if from.Less(have.From) {
			got = append(got, lb.Range{From: from, To: have.From.Prev()})
		}
		from = have.To.Next()
		part := have.Range
		if part.From.Less(want.From) {
			part.From = want.From
		}
		if want.To.Less(part.To) {
			part.To = want.To
		}
		lost[have.owner] = append(lost[have.owner], part)
	}
	if from.IsValid() && !want.To.Less(from) {
		got = append(got, lb.Range{From: from, To: want.To})
	}
	for _, g := range got {
		*c = slices.Insert(*c, c.at(g.From), claimed{g, by})
	}
	return got
}

// report reports what the pool lost. A loss to the pool itself is harmless, and so is what a living pool takes over
// from one that is being deleted.
func (o overlaps) report(r *report, object lb.Object, isDeleting bool) {
	var unusable []claimed
	for by, parts := range o {
		slices.SortFunc(parts, lb.Range.Compare)
		switch {
		case by.unusable != "":
			for _, part := range parts {
				unusable = append(unusable, claimed{part, by})
			}
		case by.pool == object.Name:
			r.note(
				object,
				lb.OverlappingAddresses,
				"spec.addresses holds %s more than once: once is enough",
				lb.SomeOf(parts),
			)
		case isDeleting && by.isLiving:
			r.note(object, lb.OverlappingAddresses, "IPAddressPool %q takes over %s", by.pool, lb.SomeOf(parts))
		default:
			r.fault(object, lb.OverlappingAddresses, "IPAddressPool %q is older and keeps %s",
				by.pool, lb.SomeOf(parts))
		}
	}
	if len(unusable) > 0 {
		slices.SortFunc(unusable, func(a, b claimed) int { return a.Compare(b.Range) })
		r.fault(
			object,
			lb.AddressNotUsable,
			"spec.addresses holds what is not given to Services: %s",
			lb.SomeOf(unusable),
		)
	}
}

// compileTerms reads the terms on which a pool assigns addresses, and the records
// in its status and its memory. Unreadable records are not ours and are ignored.
func compileTerms(
	r *report,
	object lb.Object,
	o *v1beta1.IPAddressPool,
	m *v1beta1.PoolMemory,
	undeclared v1beta1.UndeclaredPorts,
) lb.PoolTerms {
	t := lb.PoolTerms{
		Internal: o.Spec.Scope == v1beta1.ScopeInternal,
		Classes:  o.Spec.Classes,
		Tags:     o.Spec.Tags,
		Aliases:  o.Spec.Aliases,
		Reset:    undeclared == v1beta1.UndeclaredReset,
		Open:     undeclared == v1beta1.UndeclaredAllow,
	}
	if len(o.Spec.SourceRanges) > 0 {
		allowed := readSources(o.Spec.SourceRanges)
		allowed.report(r, object, "spec.sourceRanges")
		t.Restricted, t.SourceRanges = true, allowed.prefixes
	}
	if q := o.Spec.Quota; q != nil && q.PerNamespace != nil {
		t.Quota = map[lb.Family]int{}
		for family, n := range map[lb.Family]*int32{lb.IPv4: q.PerNamespace.IPv4, lb.IPv6: q.PerNamespace.IPv6} {
			if n != nil {
				t.Quota[family] = int(*n)
			}
		}
	}
	if s := o.Spec.Sharing; s != nil {
		t.ShareAcross, t.MaxServices = s.Scope == v1beta1.ShareCluster, int(s.MaxServices)
	}
	t.ReuseDelay = valueOr(o.Spec.ReuseDelay, metav1.Duration{}).Duration
	if m != nil && metav1.IsControlledBy(m, o) { // not the memory of an earlier pool of the same name
		t.ReleasedForgotten = m.Status.Forgotten
		for _, was := range m.Status.Released {
			if a, err := parseAddr(was.Address); err == nil && !was.Time.IsZero() {
				t.Released = append(
					t.Released,
					lb.Release{Address: a, Time: was.Time.Time.Time, Holder: lb.ParseKey(was.Service), UID: was.UID},
				)
			}
		}
	}
	for _, is := range o.Status.Retained {
		if a, err := parseAddr(is.Address); err == nil && !is.Since.IsZero() {
			t.Retained = append(
				t.Retained,
				lb.Retention{Address: a, Holder: lb.ParseKey(is.Service), Since: is.Since.Time.Time},
			)
		}
	}
	return t
}

func memories(objects []*v1beta1.PoolMemory) map[string]*v1beta1.PoolMemory {
	out := make(map[string]*v1beta1.PoolMemory, len(objects))
	for _, m := range objects {
		out[m.Name] = m
	}
	return out
}

// neverHosts are addresses that no router delivers to a Service. The network and
// broadcast addresses of a prefix are not included: behind a route they are
// ordinary addresses, and avoidBuggyIPs excludes them where they are not. They are in order.
var neverHosts = []struct{ prefix, what string }{
	{"0.0.0.0/32", "unspecified"},
	{"127.0.0.0/8", "loopback"},
	{"169.254.0.0/16", "link-local"},
	{"224.0.0.0/4", "multicast"},
	{"255.255.255.255/32", "broadcast"},
	{"::/128", "unspecified"},
	{"::1/128", "loopback"},
	{"::ffff:0:0/96", "IPv4 in IPv6 form"},
	{"fe80::/10", "link-local"},
	{"ff00::/8", "multicast"},
}
