package filter

import (
	"maps"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// change is the difference between two contents of the table.
type change struct {
	remove, add []nft.SetElement
	// removeLater are elements to delete in a later transaction: a packet in flight may still look them up.
	removeLater []nft.SetElement
	// newChains are the chains to add, each with a profile that makes it.
	newChains map[string]profile
	// deleteChains and deleteSets are the chains and sets without users.
	deleteChains, deleteSets []string
}

func (c *change) empty() bool {
	return len(c.remove)+len(c.add)+len(c.removeLater) == 0 && len(c.deleteChains) == 0 && len(c.newChains) == 0
}

// changeFrom returns the change from old, nil for an empty table, to img. It compares every frontend, but makes elements
// only of those that differ. What leads to replaced lists goes to removeLater, and so do lists without a frontend.
func (img *image) changeFrom(old *image) change {
	if old == nil {
		old = &image{}
	}
	var c change
	var was []nft.SetElement
	var want []nft.SetElement
	gone, come := lists{}, lists{}
	eachPair(old.frontends, img.frontends, func(a, b *frontend) {
		switch {
		case b == nil:
			was, c.removeLater = a.settings(was), a.roles(c.removeLater)
			gone.add(a)
		case a == nil:
			want = b.elements(want)
			come.add(b)
		case a.equal(b):
		case a.profile.odd != b.profile.odd:
			was, c.removeLater, want = a.settings(was), a.roles(c.removeLater), b.elements(want)
			gone.add(a)
			come.add(b)
		default:
			was, want = a.elements(was), b.elements(want)
		}
	})
	gone.without(img)
	come.without(old)
	for l := range gone {
		c.removeLater = l.elements(c.removeLater)
	}
	for _, l := range img.fair(come) {
		want = l.elements(want)
	}
	if !slices.Equal(old.others, img.others) {
		was, want = append(was, old.others...), append(want, img.others...)
	}
	c.remove, c.add = difference(was, want)
	img.chainProfiles = img.chains()
	before, after := old.chainProfiles, img.chainProfiles
	c.newChains = missing(after, before)
	for name, p := range missing(before, after) {
		c.deleteChains = append(c.deleteChains, name)
		for _, s := range p.setsOf(name) {
			c.deleteSets = append(c.deleteSets, s.Name)
		}
	}
	return c
}

// eachPair calls fn for the frontends of two ordered lists: in pairs of equal keys, and with nil for a frontend that is
// in one list only.
func eachPair(a, b []frontend, fn func(a, b *frontend)) {
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch order := compareAt(a, i, b, j); {
		case order < 0:
			fn(&a[i], nil)
			i++
		case order > 0:
			fn(nil, &b[j])
			j++
		default:
			fn(&a[i], &b[j])
			i, j = i+1, j+1
		}
	}
}

// compareAt compares a[i] with b[j]; an index past the end comes last.
func compareAt(a []frontend, i int, b []frontend, j int) int {
	switch {
	case i == len(a):
		return 1
	case j == len(b):
		return -1
	}
	return a[i].compare(&b[j])
}

// difference returns the elements of was that are not in want, and the reverse.
func difference(was, want []nft.SetElement) (remove, add []nft.SetElement) {
	if len(was) == 0 {
		return nil, want
	}
	has := make(map[nft.SetElement]bool, len(was))
	for _, m := range was {
		has[m] = true
	}
	for _, m := range want {
		if has[m] {
			delete(has, m)
		} else {
			add = append(add, m)
		}
	}
	return slices.Collect(maps.Keys(has)), add
}

// chains returns the names of the chains that the frontends need, each with a profile that makes it.
func (img *image) chains() map[string]profile {
	used := make(map[profile]bool)
	for i := range img.frontends {
		if p := img.frontends[i].profile; i == 0 || p != img.frontends[i-1].profile {
			used[p] = true
		}
	}
	names := make(map[string]profile)
	for p := range used {
		for _, c := range p.chainNames() {
			names[c] = p
		}
	}
	return names
}

// missing returns the chains of from that are not in other.
func missing(from, other map[string]profile) map[string]profile {
	out := maps.Clone(from)
	maps.DeleteFunc(out, func(name string, _ profile) bool { _, ok := other[name]; return ok })
	return out
}

// write adds the change to a transaction: chains before the elements that refer to them, and the reverse for
// deletions.
func (c *change) write(b *nft.Batch, l *nft.Layout) {
	for _, name := range slices.Sorted(maps.Keys(c.newChains)) {
		for _, s := range c.newChains[name].setsOf(name) {
			b.AddSet(s)
		}
		entered := c.newChains[name].chain(name)
		b.AddChain(entered)
		b.AddRules(entered)
	}
	b.DeleteElements(l, c.remove)
	b.AddElements(l, c.add)
	slices.Sort(c.deleteChains)
	for _, name := range slices.Backward(c.deleteChains) {
		b.DeleteChain(name)
	}
	for _, name := range c.deleteSets {
		b.DeleteSet(name)
	}
}
