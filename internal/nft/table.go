// Package nft reads and writes nf_tables over netlink, for the packages that own a table.
//
//	Table    the name of a table; lists its chains, sets and elements
//	Layout   sets, chains and rules: a table without its elements
//	Image    what a table is to hold: a layout and elements, and the difference of two
//	Owned    keeps a table: holds it to an image, replaces it if it differs, asks again what was refused
//	Batch    a transaction, which the kernel applies as a whole or not at all
//	Conn     sends batches
//
// Every rule has the signature of its layout as its comment. Two processes compute the same signature if they would
// make the same table. So a process keeps the table of its predecessor if it holds the same, and replaces any other.
//
// The expressions of rules are those of github.com/google/nftables. Its transactions and listings are not used: 10,000
// Services are some 70,000 elements, whose messages this package writes and reads in place.
//
// The package takes no decisions.
package nft

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Table names a table. The Table of a Layout also has a signature.
type Table struct {
	// Family is an NFPROTO number.
	Family byte
	Name   string
	// signature is the comment of every rule.
	signature string
}

// tableHandle is NFTA_TABLE_HANDLE of linux/netfilter/nf_tables.h.
const tableHandle = 4

// Handle returns the kernel's handle of the table, which differs from that of a later table of the same name. It
// returns os.ErrNotExist if there is no table.
func (t Table) Handle() (h uint64, err error) {
	err = t.dump(unix.NFT_MSG_GETTABLE, 0, nil, func(a attributes) { h = a.find(tableHandle).number() })
	return h, err
}

// Try has the kernel check the layout without an effect: one transaction makes the table, under another name and
// dormant, and deletes it.
func (l *Layout) Try() error {
	b := Table{Family: l.Family, Name: l.Name + "-try", signature: l.signature}.Batch()
	b.Create(unix.NFT_TABLE_F_DORMANT)
	l.Build(b)
	b.add(unix.NFT_MSG_DELTABLE, 0, nil)
	return b.Commit()
}

// Exists reports whether the table exists, as far as the kernel says.
func (t Table) Exists() bool {
	_, err := t.Handle()
	return err == nil
}

// Mark makes the table without content, if it does not exist: a record that lasts until the node restarts.
func (t Table) Mark() error {
	b := t.Batch()
	b.Create(0)
	if err := b.Commit(); err != nil {
		return fmt.Errorf("add table %s: %w", t.Name, err)
	}
	return nil
}

// Delete deletes the table with its content, if it exists.
func (t Table) Delete() error {
	b := t.Batch()
	b.Remove()
	if err := b.Commit(); err != nil {
		return fmt.Errorf("delete table %s: %w", t.Name, err)
	}
	return nil
}

// HasChain reports whether the table exists and has a chain.
func (t Table) HasChain(name string) (has bool, err error) {
	err = t.dump(
		unix.NFT_MSG_GETCHAIN,
		0,
		func(a *attributes) { a.putText(unix.NFTA_CHAIN_NAME, name) },
		func(attributes) {},
	)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}

	return err == nil, err
}

// HasJump reports whether a rule of a chain jumps to another chain of the table; false if there is no such chain.
func (t Table) HasJump(chain, to string) (has bool, err error) {
	err = retryChanged(func() error {
		has = false
		return t.dump(
			unix.NFT_MSG_GETRULE,
			unix.NLM_F_DUMP,
			func(a *attributes) { a.putText(unix.NFTA_RULE_CHAIN, chain) },
			func(a attributes) {
				for e := range a.find(unix.NFTA_RULE_EXPRESSIONS).each(unix.NFTA_LIST_ELEM) {
					verdict := e.find(
						unix.NFTA_EXPR_DATA,
						unix.NFTA_IMMEDIATE_DATA,
						unix.NFTA_DATA_VERDICT,
						unix.NFTA_VERDICT_CHAIN,
					)

					has = has || e.find(unix.NFTA_EXPR_NAME).text() == "immediate" && verdict.text() == to
				}
			},
		)
	})
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}

	return has, err
}

// Content is the content of a table: chains by name, names of sets, and elements.
type Content struct {
	// dormant: the kernel calls no chain of the table.
	dormant  bool
	Chains   map[string]chainContent
	Sets     []string
	Elements []Element
	// Ends is when the kernel deletes elements, by set and key, if nothing renews them.
	Ends map[Element]time.Time
}

// chainContent is the policy of a base chain, and counts the rules of a chain, and those of them that have the table's
// signature.
type chainContent struct {
	policy        uint64
	rules, signed int
}

// has reports whether the table is in force and has these sets, and chains with as many rules, all with the table's
// signature. Rules show neither that a table is dormant nor that a base chain has another policy than accept.
func (c *Content) has(chains []Chain, sets []Set) bool {
	return !c.dormant &&
		!slices.ContainsFunc(sets, func(want Set) bool { return !slices.Contains(c.Sets, want.Name) }) &&
		!slices.ContainsFunc(chains, func(want Chain) bool {
			got, found := c.Chains[want.Name]
			return !found ||
				got.rules != len(want.Rules) ||
				got.signed != got.rules ||
				want.Kind != "" &&
					got.policy != nfAccept
		})
}

// holds reports whether the table has a layout, with what is added to it, and nothing else.
func (c *Content) holds(l *Layout, added Change) bool {
	chains, sets := slices.Concat(l.Chains, added.Chains), slices.Concat(l.Sets, added.Sets)
	return len(c.Chains) == len(chains) &&
		len(c.Sets) == len(sets) &&
		len(c.Elements) == len(added.Add) &&
		c.has(chains, sets) &&
		len(Between(c.Elements, added.Add).Add) == 0
}

// Outline lists the names of the table's sets, and its chains. It returns os.ErrNotExist if there is no table. It is
// not for often: the kernel lists the chains of the whole family, kube-proxy's included.
func (t Table) Outline() (*Content, error) {
	c := &Content{}
	return c, retryChanged(func() error {
		c.Chains, c.Sets = make(map[string]chainContent), nil
		err := t.dump(unix.NFT_MSG_GETTABLE, 0, nil, func(a attributes) {
			c.dormant = a.find(unix.NFTA_TABLE_FLAGS).number()&unix.NFT_TABLE_F_DORMANT != 0
		})
		if err == nil {
			err = t.objects(
				unix.NFT_MSG_GETSET,
				func(a attributes) { c.Sets = append(c.Sets, a.find(unix.NFTA_SET_NAME).text()) },
			)
		}

		if err == nil {
			err = t.objects(unix.NFT_MSG_GETCHAIN, func(a attributes) {
				c.Chains[a.find(unix.NFTA_CHAIN_NAME).text()] = chainContent{
					policy: a.find(unix.NFTA_CHAIN_POLICY).number(),
				}
			})
		}

		if err != nil {
			return err
		}

		return t.objects(unix.NFT_MSG_GETRULE, func(a attributes) { c.readRule(a, t.comment()) })
	})
}

// Packets returns the sum of the counters in the table's rules.
func (t Table) Packets() (n uint64, err error) {
	err = retryChanged(func() error {
		n = 0
		return t.objects(unix.NFT_MSG_GETRULE, func(a attributes) {
			for e := range a.find(unix.NFTA_RULE_EXPRESSIONS).each(unix.NFTA_LIST_ELEM) {
				n += e.packets()
			}
		})
	})

	return n, err
}

// objects calls fn for all objects of a type in the table; the kernel lists those of all tables.
func (t Table) objects(typ int, fn func(attributes)) error {
	return t.dump(typ, unix.NLM_F_DUMP, nil, func(a attributes) {
		if a.find(unix.NFTA_TABLE_NAME).text() == t.Name {
			fn(a)
		}
	})
}

// readRule counts a rule, and its signature if the rule has that comment.
func (c *Content) readRule(a attributes, comment []byte) {
	name := a.find(unix.NFTA_RULE_CHAIN).text()
	counts := c.Chains[name]
	counts.rules++
	if bytes.Equal(a.find(unix.NFTA_RULE_USERDATA), comment) {
		counts.signed++
	}

	c.Chains[name] = counts
}
