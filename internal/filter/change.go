package filter

import (
	"maps"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// Permanent implements nft.Image.
func (img *image) Permanent() *nft.Layout { return img.table }

// From implements nft.Image. It compares every frontend, but makes elements only of those that differ.
func (img *image) From(old *image) nft.Change {
	if old == nil {
		old = &image{}
	}
	var had, want []nft.SetElement
	eachPair(old.frontends, img.frontends, func(a, b *frontend) {
		if a != nil && b != nil && a.equal(b) {
			return
		}
		if a != nil {
			had = a.elements(had)
		}
		if b != nil {
			want = b.elements(want)
		}
	})
	for l := range old.lists() {
		if !img.lists()[l] {
			had = l.elements(had)
		}
	}
	for l := range img.lists() {
		if !old.lists()[l] {
			want = l.elements(want)
		}
	}
	if !slices.Equal(old.others, img.others) {
		had, want = append(had, old.others...), append(want, img.others...)
	}
	c := nft.Between(had, want)
	there, wanted := old.chains(), img.chains()
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if _, has := there[name]; !has {
			c.Sets = append(c.Sets, wanted[name].setsOf(name)...)
			c.Chains = append(c.Chains, wanted[name].chain(name))
		}
	}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(there))) {
		if _, stays := wanted[name]; !stays {
			c.GoneChains = append(c.GoneChains, name)
			for _, s := range there[name].setsOf(name) {
				c.GoneSets = append(c.GoneSets, s.Name)
			}
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

// chains returns the names of the chains that the frontends need, each with a profile that makes it.
func (img *image) chains() map[string]profile {
	if img.chainProfiles != nil {
		return img.chainProfiles
	}
	used := make(map[profile]bool)
	for i := range img.frontends {
		if p := img.frontends[i].profile; i == 0 || p != img.frontends[i-1].profile {
			used[p] = true
		}
	}
	img.chainProfiles = make(map[string]profile)
	for p := range used {
		for _, c := range p.chainNames() {
			img.chainProfiles[c] = p
		}
	}
	return img.chainProfiles
}
