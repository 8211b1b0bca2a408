package nft

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// Change is the difference between two contents of a table.
type Change struct {
	Remove, Add []Element
	// Sets and Chains come, with the rules of the chains; GoneSets and GoneChains have no users any more.
	Sets                 []Set
	Chains               []Chain
	GoneSets, GoneChains []string
}

// Between returns the change from elements to others, of which none is in a list twice.
func Between(old, want []Element) (c Change) {
	old, want = Apart(old, want, func(a, b Element) bool { return a == b })
	if len(old) == 0 {
		return Change{Add: want}
	}

	had := make(map[Element]bool, len(old))
	for _, m := range old {
		had[m] = true
	}

	for _, m := range want {
		if had[m] {
			delete(had, m)
		} else {
			c.Add = append(c.Add, m)
		}
	}

	c.Remove = slices.Collect(maps.Keys(had))
	return c
}

// Apart returns two lists without what both begin and end with.
func Apart[T any](a, b []T, same func(T, T) bool) (_, _ []T) {
	for len(a) > 0 && len(b) > 0 && same(a[0], b[0]) {
		a, b = a[1:], b[1:]
	}

	for len(a) > 0 && len(b) > 0 && same(a[len(a)-1], b[len(b)-1]) {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}

	return a, b
}

// empty reports whether the change needs no transaction of its own.
func (c *Change) empty() bool {
	return len(c.Remove)+len(c.Add)+len(c.Sets)+len(c.Chains)+len(c.GoneSets)+len(c.GoneChains) == 0
}

// write adds the change to a transaction: chains before the elements that refer to them, and the reverse for deletions.
func (c *Change) write(b *Batch, l *Layout) {
	for _, s := range c.Sets {
		b.AddSet(s)
	}

	for _, added := range c.Chains {
		b.AddChain(added)
	}

	// The kernel may have deleted an element at the end of its time, and refuses to delete what is not there.
	b.AddElements(
		l,
		slices.DeleteFunc(
			slices.Clone(c.Remove),
			func(m Element) bool { return l.Set(m.Set).Flags&unix.NFT_SET_TIMEOUT == 0 },
		),
	)

	b.DeleteElements(l, c.Remove)
	b.AddElements(l, c.Add)
	for _, name := range c.GoneChains {
		b.DeleteChain(name)
	}

	for _, name := range c.GoneSets {
		b.DeleteSet(name)
	}
}

// Static is an image of a table whose sets and chains are those of its layout.
type Static struct {
	*Layout
	Elements []Element
}

// Permanent implements Image.
func (s *Static) Permanent() *Layout { return s.Layout }

// From implements Image.
func (s *Static) From(old *Static) Change {
	if old == nil {
		old = &Static{}
	}
	return Between(old.Elements, s.Elements)
}
