package nft

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Layout is a table without its elements: its sets, and its chains with their rules.
type Layout struct {
	Table
	Sets []Set
	// Chains are sorted: each follows the chains that it jumps to.
	Chains []Chain
}

// NewLayout returns a layout and computes its signature. The argument later has samples of the chains that are added
// and deleted while the table exists: they are part of the signature.
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
	return &Layout{
		Table:  t,
		Sets:   sets,
		Chains: chains,
	}
}

// Set returns the set with a name; for an unknown name, a set without properties.
func (l *Layout) Set(name string) Set {
	for _, s := range l.Sets {
		if s.Name == name {
			return s
		}
	}

	return Set{Name: name}
}

// Build adds the sets, chains and rules of the layout to an empty table.
func (l *Layout) Build(b *Batch) {
	for _, s := range l.Sets {
		b.AddSet(s)
	}

	for _, c := range l.Chains {
		b.AddChain(c)
	}
}

// ErrOther means that the table differs: another program or another version of this one made or changed it.
var ErrOther = errors.New("the table has other content")

// Read lists the table, with the elements of all sets but those that packets fill. It returns os.ErrNotExist if there
// is no table, and ErrOther if the table has another layout or is not in force.
func (l *Layout) Read() (*Content, error) {
	c, err := l.Outline()
	if err != nil {
		return nil, err
	}

	if !c.hasLayout(l.Chains, l.Sets) {
		return nil, ErrOther
	}

	c.Ends = make(map[Element]time.Time)
	for _, s := range l.Sets {
		if s.Flags&unix.NFT_SET_EVAL != 0 {
			continue
		}

		if err := c.addElements(l.Table, s); err != nil {
			return nil, err
		}
	}

	return c, nil
}
