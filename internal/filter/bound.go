package filter

import (
	"cmp"
	"fmt"
	"slices"
)

// cost measures the work and the memory that lists and profiles take in the kernel.
type cost struct {
	// prefixes counts the prefixes of all lists, each list once.
	prefixes int
	// rules counts the rules that look up sources. A profile has one for each prefix length in its lists.
	rules int
}

// maxCost is the bound of a node. 250,000 prefixes take the kernel some 25 MiB, and half a second of one core for the
// whole table. The kernel's work for rules is quadratic; 10,000 rules take less than a second.
var maxCost = cost{prefixes: 250_000, rules: 10_000}

// plus returns the sum of two costs.
func (c cost) plus(o cost) cost {
	return cost{
		prefixes: c.prefixes + o.prefixes,
		rules:    c.rules + o.rules,
	}
}

// exceedsMax reports whether the cost exceeds the bound. An image counts the chains of both parities, so its cost may
// be too high.
func (c cost) exceedsMax() bool {
	return c.prefixes > maxCost.prefixes || c.rules > maxCost.rules
}

// weight returns the cost as one number: each part is relative to its bound.
func (c cost) weight() int {
	return c.prefixes + c.rules*(maxCost.prefixes/maxCost.rules)
}

// charge returns the additional cost of a frontend beside others. They have paid for the lists and profiles in paid.
func (d *frontend) charge(paid map[any]bool) (c cost) {
	for _, l := range [...]*list{d.allow, d.deny} {
		if l != nil && !paid[l] {
			c.prefixes += l.size
		}
	}

	p := d.profile.even()
	if !paid[p] {
		c.rules = p.rules()
	}

	return c
}

// pay adds the lists and the profile of a frontend to the paid ones.
func (d *frontend) pay(paid map[any]bool) {
	paid[d.allow] = true
	paid[d.deny] = true
	paid[d.profile.even()] = true
}

// closeExpensive closes the frontends that exceed the bound. The frontends of the cheapest namespace come first, so no
// tenant can cause the Services of another to be closed.
func (img *image) closeExpensive() {
	var used cost
	paid := map[any]bool{}
	for _, d := range img.cheapestFirst() {
		c := d.charge(paid)
		if !used.plus(c).exceedsMax() {
			used = used.plus(c)
			d.pay(paid)
			continue
		}

		if d.refused == nil {
			d.refused = fmt.Errorf("its lists of %d prefixes of %d lengths are beyond the bound of %d prefixes and of "+
				"%d combinations of lengths and limits for all lists of a node",
				c.prefixes, c.rules, maxCost.prefixes, maxCost.rules)
		}
	}
}

// cheapestFirst returns all frontends, ordered by the cost of their namespace and by their own.
func (img *image) cheapestFirst() []*frontend {
	totals := map[string]int{}          // by namespace
	paidBy := map[string]map[any]bool{} // by namespace
	var list []*frontend
	for d := range img.all() {
		namespace := d.Service.Namespace
		if paidBy[namespace] == nil {
			paidBy[namespace] = map[any]bool{}
		}

		totals[namespace] += d.charge(paidBy[namespace]).weight()
		d.pay(paidBy[namespace])
		list = append(list, d)
	}

	slices.SortStableFunc(list, func(a, b *frontend) int {
		return cmp.Or(
			cmp.Compare(totals[a.Service.Namespace], totals[b.Service.Namespace]),
			cmp.Compare(a.charge(nil).weight(), b.charge(nil).weight()),
		)
	})

	return list
}
