package nft

// Change is the difference between two contents of a table.
type Change struct {
	Remove, Add []SetElement
	// Later are elements to delete in a later transaction: a packet in flight may still look them up, and what is new does not
	// wait for what goes. That would take ten times as long.
	Later []SetElement
	// Sets and Chains come, with the rules of the chains; GoneSets and GoneChains have no users any more.
	Sets                 []Set
	Chains               []Chain
	GoneSets, GoneChains []string
}

// Between returns the change from elements to others. What goes, goes later if it may and is not in the way of what is wanted.
func Between(old, want []SetElement, later func(SetElement) bool) (c Change) {
	if len(old) == 0 {
		return Change{Add: want}
	}
	gone := make(map[SetElement]bool, len(old))
	for _, m := range old {
		gone[m] = true
	}
	inTheWay := make(map[SetElement]bool)
	for _, m := range want {
		if gone[m] {
			delete(gone, m)
		} else {
			c.Add = append(c.Add, m)
			inTheWay[m.key()] = true
		}
	}
	for m := range gone {
		if !inTheWay[m.key()] && later(m) {
			c.Later = append(c.Later, m)
		} else {
			c.Remove = append(c.Remove, m)
		}
	}
	return c
}

// key is the element without its value.
func (m SetElement) key() SetElement { return SetElement{m.Set, Element{Key: m.Key}} }

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
		b.AddRules(added)
	}
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
	Elements []SetElement
	// Later: what goes, goes later.
	Later bool
}

// Permanent implements Image.
func (s *Static) Permanent() *Layout { return s.Layout }

// From implements Image.
func (s *Static) From(old *Static) Change {
	if old == nil {
		old = &Static{}
	}
	return Between(old.Elements, s.Elements, func(SetElement) bool { return s.Later })
}

// Adopt implements Image.
func (s *Static) Adopt(is *Content) (Change, error) {
	return s.From(&Static{Elements: is.Elements}), nil
}
