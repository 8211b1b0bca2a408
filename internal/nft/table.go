// Package nft speaks nf_tables by netlink, for the packages that keep a table of their own.
//
//	Table    names a table: what exists, its chains, sets and members
//	Layout   sets, chains and rules: a table without its members
//	Batch    a transaction, which the kernel takes as a whole or not at all
//	Conn     carries batches, and names their sender in notifications
//	Watch    tells of changes that others make
//
// Every rule has the signature of its layout as its comment. Two processes agree on the signature if they would
// make the same table, so that one takes over what the other left, and replaces anything else.
//
// The expressions of rules are those of github.com/google/nftables. Its transactions and listings are not: 10,000
// Services are some 70,000 members, whose messages are written and read in place here.
//
// The package decides nothing, and remembers nothing of what the kernel holds.
package nft

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// Table names a table. A Layout's has a signature too.
type Table struct {
	// Family is an NFPROTO number.
	Family byte
	Name   string
	// signature is the comment of every rule.
	signature string
}

// tableHandle is NFTA_TABLE_HANDLE of linux/netfilter/nf_tables.h.
const tableHandle = 4

// Handle returns what tells the table from one of the same name that somebody made later. It returns
// os.ErrNotExist where there is none.
func (t Table) Handle() (h uint64, err error) {
	err = t.dump(unix.NFT_MSG_GETTABLE, 0, nil, func(a attributes) { h = a.find(tableHandle).number() })
	return h, err
}

// HasChain reports whether the table has a chain; what cannot be read is not there.
func (t Table) HasChain(name string) bool {
	return t.dump(unix.NFT_MSG_GETCHAIN, 0, func(a *attributes) { a.putText(unix.NFTA_CHAIN_NAME, name) },
		func(attributes) {}) == nil
}

// Content is what a table holds: chains, names of sets, and members.
type Content struct {
	Chains  map[string]*Found
	Sets    []string
	Members []Member
}

// Found is a chain that is there: its rules, and how many of them have the table's signature.
type Found struct{ rules, signed int }

// Has reports whether a chain is there with rules of the table's signature, as many as it should have.
func (c *Content) Has(want Chain) bool {
	is := c.Chains[want.Name]
	return is != nil && is.rules == len(want.Rules) && is.signed == is.rules
}

// chain returns what was found of a chain.
func (c *Content) chain(name string) *Found {
	if c.Chains[name] == nil {
		c.Chains[name] = &Found{}
	}
	return c.Chains[name]
}

// Outline lists the table's sets, and the chains that have rules, or all of them. It returns os.ErrNotExist where
// there is no table. All is not to be asked for often where kube-proxy has a table: the kernel lists the chains of the
// whole family.
func (t Table) Outline(all bool) (*Content, error) {
	c := &Content{}
	return c, settled(func() error {
		c.Chains, c.Sets = make(map[string]*Found), nil
		err := t.objects(unix.NFT_MSG_GETSET, func(a attributes) { c.Sets = append(c.Sets, a.find(unix.NFTA_SET_NAME).text()) })
		if err == nil && all {
			err = t.objects(unix.NFT_MSG_GETCHAIN, func(a attributes) { c.chain(a.find(unix.NFTA_CHAIN_NAME).text()) })
		}
		if err != nil {
			return err
		}
		return t.objects(unix.NFT_MSG_GETRULE, func(a attributes) { c.readRule(a, t.comment()) })
	})
}

// Packets counts what the counters in the table's rules have seen.
func (t Table) Packets() (n uint64, err error) {
	err = settled(func() error {
		n = 0
		return t.objects(unix.NFT_MSG_GETRULE, func(a attributes) {
			for e := range a.find(unix.NFTA_RULE_EXPRESSIONS).each(unix.NFTA_LIST_ELEM) {
				n += e.packets()
			}
		})
	})
	return n, err
}

// objects calls fn for all objects of a type in the table, whose name each has first.
func (t Table) objects(typ int, fn func(attributes)) error {
	return t.dump(typ, unix.NLM_F_DUMP, nil, func(a attributes) {
		if a.find(unix.NFTA_TABLE_NAME).text() == t.Name {
			fn(a)
		}
	})
}

// readRule adds a rule, which may have a comment.
func (c *Content) readRule(a attributes, comment []byte) {
	f := c.chain(a.find(unix.NFTA_RULE_CHAIN).text())
	f.rules++
	if bytes.Equal(a.find(unix.NFTA_RULE_USERDATA), comment) {
		f.signed++
	}
}
