package nft

import (
	"fmt"
	"sort"

	"golang.org/x/sys/unix"
)

// dormant is NFT_TABLE_F_DORMANT of linux/netfilter/nf_tables.h: the kernel calls no chain of the table.
const dormant = 1

// Try has the kernel check the layout without an effect: one transaction makes the table, under another name and
// dormant, and deletes it. If the kernel refuses the layout, Try returns the error and names the first part that it refuses:
// a kind of sets or of chains, or an expression. The part is empty if the kernel refuses even an empty table.
func (l *Layout) Try() (part string, err error) {
	parts := l.Parts()
	if err = l.try(len(parts)); err == nil {
		return "", nil
	}
	// What needs a part comes after it, so all beginnings up to the first refused part are accepted, and no longer one is.
	n := sort.Search(len(parts), func(n int) bool { return l.try(n) != nil })
	if e := l.try(n); e != nil {
		err = e // of the part itself
	}
	if n == 0 {
		return "", err
	}
	return parts[n-1], err
}

// try commits the first parts of the layout, and their deletion.
func (l *Layout) try(parts int) error {
	return l.Trial(func(b *Batch, l *Layout) { l.beginning(parts).Build(b) }).Commit()
}

// Trial returns a transaction that makes a table of another name, which no packet meets, with what build adds to it, and
// deletes it.
func (l *Layout) Trial(build func(*Batch, *Layout)) *Batch {
	table := Table{Family: l.Family, Name: l.Name + "-try", signature: l.signature}
	b := table.Batch()
	b.create(dormant)
	build(b, &Layout{Table: table, Sets: l.Sets, Chains: l.Chains})
	b.add(unix.NFT_MSG_DELTABLE, 0, nil)
	return b
}

// Parts names the parts of the layout in the order of their making: sets, chains, expressions.
func (l *Layout) Parts() []string {
	var out []string
	for _, s := range l.Sets {
		out = append(out, s.kind())
	}
	for _, c := range l.Chains {
		out = append(out, c.kind())
	}
	for _, c := range l.Chains {
		for _, r := range c.Rules {
			for _, e := range r {
				out = append(out, nameOf(e))
			}
		}
	}
	return out
}

// beginning returns the first n parts of the layout as a layout; the last rule may be the beginning of one.
func (l *Layout) beginning(n int) *Layout {
	take := func(of int) int {
		some := min(n, of)
		n -= some
		return some
	}
	out := &Layout{Sets: l.Sets[:take(len(l.Sets))]}
	for _, c := range l.Chains[:take(len(l.Chains))] {
		c.Rules = nil
		out.Chains = append(out.Chains, c)
	}
	for i := range out.Chains {
		for _, r := range l.Chains[i].Rules {
			if some := take(len(r)); some > 0 {
				out.Chains[i].Rules = append(out.Chains[i].Rules, r[:some])
			}
		}
	}
	return out
}

// kind names what the kernel needs for the set.
func (s Set) kind() string {
	switch {
	case s.Intervals():
		return "sets of intervals"
	case s.Flags&unix.NFT_SET_EVAL != 0:
		return "sets that packets fill"
	case len(s.Key) > 1:
		return "sets with concatenated keys"
	}
	return "sets"
}

// kind names what the kernel needs for the chain.
func (c Chain) kind() string {
	if c.Kind == "" {
		return "chains"
	}
	return fmt.Sprintf("chains of type %s", c.Kind)
}

// nameOf returns the name of an expression; of one that contains another, as dynset does, that of the inner one.
func nameOf(e expression) string {
	a := attributes(e)
	name := a.find(unix.NFTA_EXPR_NAME).text()
	if inner := a.find(unix.NFTA_EXPR_DATA, unix.NFTA_DYNSET_EXPR, unix.NFTA_EXPR_NAME); name == "dynset" && inner != nil {
		return inner.text()
	}
	return name
}
