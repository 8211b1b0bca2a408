package nft

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Layout is a table without its members.
type Layout struct {
	Table
	Sets []Set
	// Chains in an order in which each comes after those it goes to.
	Chains []Chain
}

// NewLayout returns a layout and signs it. Later are samples of the chains that come and go while it stands: they
// are in the signature too.
func NewLayout(t Table, sets []Set, chains []Chain, later ...Chain) *Layout {
	h := sha256.New()
	for _, c := range slices.Concat(chains, later) {
		fmt.Fprintln(h, c.Name, c.Kind, c.Hook, c.Priority, len(c.Rules))
		for _, r := range c.Rules {
			fmt.Fprintf(h, "%x\n", r)
		}
	}
	for _, s := range sets {
		fmt.Fprintf(h, "%+v\n", s)
	}
	t.signature = fmt.Sprintf("layout %x", h.Sum(nil)[:8])
	return &Layout{Table: t, Sets: sets, Chains: chains}
}

// Set returns the set of a name; one that the layout has not is a plain set.
func (l *Layout) Set(name string) Set {
	if i := slices.IndexFunc(l.Sets, func(s Set) bool { return s.Name == name }); i >= 0 {
		return l.Sets[i]
	}
	return Set{Name: name}
}

// Build fills an empty table with what the layout has.
func (l *Layout) Build(b *Batch) {
	for _, s := range l.Sets {
		b.AddSet(s)
	}
	for _, c := range l.Chains {
		b.AddChain(c)
	}
	for _, c := range l.Chains {
		b.AddRules(c)
	}
}

// ErrOther says that a table is another's, or of another version: it is not to be taken over.
var ErrOther = errors.New("the table has other rules")

// Read lists the table as Outline does, and the members of sets that packets do not fill. It returns os.ErrNotExist
// where there is none, and ErrOther where it is not of this layout.
func (l *Layout) Read(all bool) (*Content, error) {
	c, err := l.Outline(all)
	if err != nil {
		return nil, err
	}
	other := slices.ContainsFunc(l.Chains, func(want Chain) bool { return !c.Has(want) }) ||
		slices.ContainsFunc(l.Sets, func(want Set) bool { return !slices.Contains(c.Sets, want.Name) })
	if other {
		return nil, ErrOther
	}
	for _, s := range l.Sets {
		if s.Flags&unix.NFT_SET_EVAL != 0 {
			continue
		}
		listed, err := l.List(s)
		if err != nil {
			return nil, err
		}
		for _, e := range listed {
			c.Members = append(c.Members, Member{s.Name, e.Element})
		}
	}
	return c, nil
}
