package filter

import (
	"maps"
	"slices"
	"strings"

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
	gone, come := lists{}, lists{}
	eachPair(old.frontends, img.frontends, func(a, b *frontend) {
		if a != nil && b != nil && a.equal(b) {
			return
		}
		if a != nil {
			had = a.elements(had)
			gone.add(a)
		}
		if b != nil {
			want = b.elements(want)
			come.add(b)
		}
	})
	gone.without(img)
	come.without(old)
	for l := range gone {
		had = l.elements(had)
	}
	for _, l := range img.fair(come) {
		want = l.elements(want)
	}
	if !slices.Equal(old.others, img.others) {
		had, want = append(had, old.others...), append(want, img.others...)
	}
	c := nft.Between(had, want, lingers)
	there := make(map[string][]string)
	for name, p := range old.chains() {
		there[name] = nil
		for _, s := range p.setsOf(name) {
			there[name] = append(there[name], s.Name)
		}
	}
	img.changeChains(&c, there)
	return c
}

// lingers reports whether packets in flight may still look an element up: what leads to a list, and the list.
func lingers(m nft.SetElement) bool { return leads(m) || strings.HasPrefix(m.Set, sourcesSet) }

// leads reports whether an element leads from a frontend to one of its lists.
func leads(m nft.SetElement) bool {
	return strings.HasPrefix(m.Set, allowSet) || strings.HasPrefix(m.Set, denySet)
}

// changeChains adds the difference of the profiles' chains to a change, given those that are there with their sets.
func (img *image) changeChains(c *nft.Change, there map[string][]string) {
	wanted := img.chains()
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if _, has := there[name]; !has {
			c.Sets = append(c.Sets, wanted[name].setsOf(name)...)
			c.Chains = append(c.Chains, wanted[name].chain(name))
		}
	}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(there))) {
		if _, stays := wanted[name]; !stays {
			c.GoneChains = append(c.GoneChains, name)
			c.GoneSets = append(c.GoneSets, there[name]...)
		}
	}
}

// Adopt implements nft.Image. So a restart opens nothing and keeps the counters.
func (img *image) Adopt(is *nft.Content) (c nft.Change, err error) {
	img.takeParity(is)
	// A list of another process may have the number of one that is wanted: it is in the way.
	used, numbers := lists{}, make(map[string]bool)
	for i := range img.frontends {
		used.add(&img.frontends[i])
	}
	for l := range used {
		numbers[string(nft.Native(l.number))] = true
	}
	c = nft.Between(is.Elements, img.From(nil).Add, func(m nft.SetElement) bool {
		return lingers(m) && (leads(m) || !numbers[m.Key[len(m.Key)-numberSize:]])
	})
	there, wanted := make(map[string][]string), img.chains()
	for name := range is.Chains {
		if slices.ContainsFunc(img.table.Chains, func(c nft.Chain) bool { return c.Name == name }) {
			continue
		}
		if p, stays := wanted[name]; stays && !is.Has(p.chain(name)) {
			return c, nft.ErrOther
		}
		there[name] = slices.DeleteFunc(slices.Clone(is.Sets), func(s string) bool { return !strings.HasSuffix(s, "-"+name) })
	}
	img.changeChains(&c, there)
	return c, nil
}

// takeParity sets the parities by those of an existing table, whose verdicts show which lists are odd.
func (img *image) takeParity(is *nft.Content) {
	verdicts, ids := make(map[string]string), make(map[nft.SetElement]bool)
	for _, m := range is.Elements {
		switch {
		case strings.HasPrefix(m.Set, frontendsSet):
			verdicts[m.Key] = m.Value
		case leads(m):
			ids[m] = true
		}
	}
	for i := range img.frontends {
		d := &img.frontends[i]
		verdict := verdicts[d.key()]
		d.profile.odd = strings.Contains(verdict, oddSuffix)
		other := func(m nft.SetElement) bool { return !ids[m] }
		if verdict != nft.Accepted && slices.ContainsFunc(d.roles(nil), other) {
			d.profile.odd = !d.profile.odd
		}
	}
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
