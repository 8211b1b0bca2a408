package config

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// unusablePrefixes are addresses that no router delivers to a Service, in order. The network and broadcast addresses of
// a prefix are not included: behind a route they are ordinary addresses. Where they are not, avoidBuggyIPs excludes
// them.
var unusablePrefixes = []struct{ prefix, kind string }{
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

// ownedRanges are ranges with their owners: disjoint, ordered by address.
type ownedRanges []ownedRange

// ownedRange is a range with its owner.
type ownedRange struct {
	lb.Range
	owner rangeOwner
}

// rangeOwner is the pool that a range belongs to, or the reason why no pool can have it.
type rangeOwner struct {
	// pool is the name of the pool.
	pool string
	// isActive reports whether the pool is not being deleted.
	isActive bool
	// unusable is the reason.
	unusable string
}

// unusableRanges returns the ranges that no pool can have.
func unusableRanges() (out ownedRanges) {
	for _, u := range unusablePrefixes {
		prefix := netip.MustParsePrefix(u.prefix)
		out = append(out, ownedRange{
			Range: rangeOf(prefix),
			owner: rangeOwner{unusable: u.kind},
		})
	}

	return out
}

// String returns the range, and the reason why no pool can have it.
func (o ownedRange) String() string {
	return fmt.Sprintf("%s (%s)", o.Range, o.owner.unusable)
}

// at returns the index of the first range that does not end before the address.
func (o ownedRanges) at(a netip.Addr) int {
	i, _ := slices.BinarySearchFunc(o, a, func(have ownedRange, a netip.Addr) int {
		return have.To.Compare(a)
	})
	return i
}

// claim gives the owner the parts of the range that have no owner yet, and records the other parts in lost.
func (o *ownedRanges) claim(owner rangeOwner, want lb.Range, lost lostRanges) (got []lb.Range) {
	from := want.From
	first := o.at(want.From)
	for _, have := range (*o)[first:] {
		if !have.Overlaps(want) {
			break
		}

		if from.Less(have.From) {
			got = append(got, lb.Range{From: from, To: have.From.Prev()})
		}

		from = have.To.Next()
		lost[have.owner] = append(lost[have.owner], have.Intersect(want))
	}

	hasRest := from.IsValid() && !want.To.Less(from)
	if hasRest {
		got = append(got, lb.Range{From: from, To: want.To})
	}

	for _, g := range got {
		*o = slices.Insert(*o, o.at(g.From), ownedRange{Range: g, owner: owner})
	}

	return got
}

// lostRanges are the parts of a pool's entries that belong to others, by their owner.
type lostRanges map[rangeOwner][]lb.Range

// reportTo reports what the pool lost. A loss to the pool itself is harmless, and so is a loss of a pool that is being
// deleted to an active pool.
func (l lostRanges) reportTo(r *problemList, object lb.Object, isDeleting bool) {
	var unusable []ownedRange
	for owner, parts := range l {
		slices.SortFunc(parts, lb.Range.Compare)
		switch {
		case owner.unusable != "":
			for _, part := range parts {
				unusable = append(unusable, ownedRange{Range: part, owner: owner})
			}
		case owner.pool == object.Name:
			r.addNote(object, lb.OverlappingAddresses, "spec.addresses holds %s more than once: once is enough",
				lb.SomeOf(parts))
		case isDeleting && owner.isActive:
			r.addNote(object, lb.OverlappingAddresses, "IPAddressPool %q takes over %s", owner.pool, lb.SomeOf(parts))
		default:
			r.add(object, lb.OverlappingAddresses, "IPAddressPool %q is older and keeps %s",
				owner.pool, lb.SomeOf(parts))
		}
	}

	if len(unusable) == 0 {
		return
	}

	slices.SortFunc(unusable, func(a, b ownedRange) int {
		return a.Compare(b.Range)
	})
	r.add(object, lb.AddressNotUsable, "spec.addresses holds addresses that no Service can have: %s",
		lb.SomeOf(unusable))
}
