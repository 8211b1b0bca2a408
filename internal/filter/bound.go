package filter

import (
	"cmp"
	"fmt"
	"slices"
)

// cost is what lists and profiles take in the kernel.
type cost struct {
	// prefixes of different lists.
	prefixes int
	// rules that look up sources: a profile has one for each length of a prefix in its lists.
	rules int
}

// maxCost is the bound of a node: 250,000 prefixes take the kernel some 25 MiB, and half a second of one core for the
// whole table. For rules the kernel's work is quadratic, and these take it less than a second.
var maxCost = cost{prefixes: 250_000, rules: 10_000}

func (c cost) plus(o cost) cost { return cost{c.prefixes + o.prefixes, c.rules + o.rules} }

// beyond reports whether a cost is beyond the bound. An image counts chains of both parities, which may be one.
func (c cost) beyond() bool { return c.prefixes > maxCost.prefixes || c.rules > maxCost.rules }

// weight makes costs comparable: in parts of the bound.
func (c cost) weight() int { return c.prefixes + c.rules*(maxCost.prefixes/maxCost.rules) }

// charge is what a frontend costs beside others that have paid for some lists and profiles.
func (d *frontend) charge(paid map[any]bool) (c cost) {
	for _, l := range [...]*list{d.allow, d.deny} {
		if l != nil && !paid[l] {
			c.prefixes += l.size
		}
	}

	if p := d.profile.even(); !paid[p] {
		c.rules = p.rules()
	}

	return c
}

// pay notes that a frontend pays what it costs.
func (d *frontend) pay(paid map[any]bool) {
	paid[d.allow], paid[d.deny], paid[d.profile.even()] = true, true, true
}

// admit closes the frontends that are beyond the bound. The frontends of a namespace that costs little in all come
// first, so that no tenant has the Services of another closed.
func (img *image) admit() {
	total, own := map[string]int{}, map[string]map[any]bool{}
	var order []*frontend
	for d := range img.all() {
		space := d.Service.Namespace
		if own[space] == nil {
			own[space] = map[any]bool{}
		}

		total[space] += d.charge(own[space]).weight()
		d.pay(own[space])
		order = append(order, d)
	}

	slices.SortStableFunc(order, func(a, b *frontend) int {
		return cmp.Or(cmp.Compare(total[a.Service.Namespace], total[b.Service.Namespace]),
			cmp.Compare(a.charge(nil).weight(), b.charge(nil).weight()))
	})

	var used cost
	paid := map[any]bool{}
	for _, d := range order {
		c := d.charge(paid)
		if used.plus(c).beyond() {
			d.refused = cmp.Or(
				d.refused,
				fmt.Errorf(
					"its lists of %d prefixes of %d lengths are beyond the bound of %d prefixes and of %d combinations of lengths "+
						"and limits for all lists of a node",
					c.prefixes,
					c.rules,
					maxCost.prefixes,
					maxCost.rules,
				),
			)

			continue
		}

		used = used.plus(c)
		d.pay(paid)
	}
}
