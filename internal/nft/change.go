package nft

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// Change is the difference between two contents of a table.
type Change struct {
	// Remove and Add are the elements to delete and to add.
	Remove, Add []Element
	// Sets and Chains are added, the chains with their rules. OldSets and OldChains are the names of sets and chains to
	// delete: nothing refers to them after the change.
	Sets               []Set
	Chains             []Chain
	OldSets, OldChains []string
}

// Diff returns the change from the old elements to the desired ones. Neither list has an element twice.
func Diff(old, want []Element) (c Change) {
	old, want = TrimCommon(old, want, func(a, b Element) bool { return a == b })
	if len(old) == 0 {
		return Change{Add: want}
	}

	obsolete := make(map[Element]bool, len(old))
	for _, e := range old {
		obsolete[e] = true
	}

	for _, e := range want {
		if obsolete[e] {
			delete(obsolete, e)
		} else {
			c.Add = append(c.Add, e)
		}
	}

	c.Remove = slices.Collect(maps.Keys(obsolete))
	return c
}

// TrimCommon returns two lists without their common beginning and their common end. So the comparison of two long lists
// is cheap if they differ in few places.
func TrimCommon[T any](a, b []T, same func(T, T) bool) (_, _ []T) {
	begin := 0
	for begin < min(len(a), len(b)) && same(a[begin], b[begin]) {
		begin++
	}

	a = a[begin:]
	b = b[begin:]
	end := 0
	for end < min(len(a), len(b)) && same(a[len(a)-1-end], b[len(b)-1-end]) {
		end++
	}

	return a[:len(a)-end], b[:len(b)-end]
}

// empty reports whether the change changes nothing.
func (c *Change) empty() bool {
	elements := len(c.Remove) + len(c.Add)
	sets := len(c.Sets) + len(c.OldSets)
	chains := len(c.Chains) + len(c.OldChains)
	return elements+sets+chains == 0
}

// write adds the change to a transaction. It adds chains before the elements that refer to them, and deletes them
// after.
func (c *Change) write(b *Batch, l *Layout) {
	for _, s := range c.Sets {
		b.AddSet(s)
	}

	for _, chain := range c.Chains {
		b.AddChain(chain)
	}

	// The kernel refuses to delete an element that does not exist, and an element with a timeout may have expired. Add
	// it first: for an element that exists this has no effect.
	var mayHaveExpired []Element
	for _, e := range c.Remove {
		if l.Set(e.Set).Flags&unix.NFT_SET_TIMEOUT != 0 {
			mayHaveExpired = append(mayHaveExpired, e)
		}
	}

	b.AddElements(l, mayHaveExpired)

	b.DeleteElements(l, c.Remove)
	b.AddElements(l, c.Add)
	for _, name := range c.OldChains {
		b.DeleteChain(name)
	}

	for _, name := range c.OldSets {
		b.DeleteSet(name)
	}
}

// Static is an Image whose sets and chains are exactly the layout's: only the elements change.
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
	return Diff(old.Elements, s.Elements)
}
