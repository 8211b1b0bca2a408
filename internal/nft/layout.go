package nft

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Layout is a table without its elements.
type Layout struct {
	Table
	Sets []Set
	// Chains in an order in which each follows its jump targets.
	Chains []Chain
}

// NewLayout returns a layout and computes its signature. The argument later has samples of the chains that come and go
// while the table exists: they are part of the signature.
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

// Set returns the set of a name; for an unknown name, a plain set.
func (l *Layout) Set(name string) Set {
	if i := slices.IndexFunc(l.Sets, func(s Set) bool { return s.Name == name }); i >= 0 {
		return l.Sets[i]
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

// ErrOther means that another program or another version made or changed the table.
var ErrOther = errors.New("the table has other content")

// Read lists the table, and the elements of the sets that packets do not fill. It returns os.ErrNotExist if there is no
// table, and ErrOther if the table has another layout or is not in force.
func (l *Layout) Read() (*Content, error) {
	c, err := l.Outline()
	if err != nil {
		return nil, err
	}

	if !c.has(l.Chains, l.Sets) {
		return nil, ErrOther
	}

	c.Ends = make(map[Element]time.Time)
	for _, s := range l.Sets {
		if s.Flags&unix.NFT_SET_EVAL != 0 {
			continue
		}

		if err := c.list(l.Table, s); err != nil {
			return nil, err
		}
	}

	return c, nil
}
