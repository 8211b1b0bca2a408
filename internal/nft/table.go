// Package nft reads and writes nf_tables over netlink, for the packages that own a table.
//
//	Table    the name of a table; lists its chains, sets and elements
//	Layout   a table without its elements: sets, chains and rules
//	Image    the desired content of a table; computes the change from another image
//	Owned    keeps a table equal to an image: changes it, repairs it, and retries what the kernel refuses
//	Batch    a transaction, which the kernel applies as a whole or not at all
//	Conn     sends batches
//
// A package that owns a table describes it by a Layout and an Image, and leaves the rest to an Owned:
//
//	owned := nft.NewOwned(nft.Config[*nft.Static]{Log: log, Table: layout.Table, Image: desiredImage})
//	go owned.Run(ctx) // repairs what other programs change
//	owned.Lock()
//	err := owned.Apply(false) // calls desiredImage, and makes the kernel's table equal to it
//	owned.Unlock()
//
// Every rule has the signature of its layout as its comment. Two processes compute the same signature exactly if they
// would make the same rules and sets. So a process adopts the table of its predecessor if the content is the same, and
// replaces any other table.
//
// Rules are made of the expressions of github.com/google/nftables. The package does not use that library's transactions
// and listings: 10,000 Services are some 70,000 elements, whose messages it writes and reads in place.
//
// The package takes no decisions, and touches no table but those that its callers name.
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

// Table names a table. The Table of a Layout has a signature too.
type Table struct {
	// Family is an NFPROTO number.
	Family byte
	Name   string
	// signature is the comment of every rule; empty without a layout.
	signature string
}

// tableHandle is NFTA_TABLE_HANDLE of linux/netfilter/nf_tables.h.
const tableHandle = 4

// Handle returns the kernel's handle of the table. A later table of the same name has another handle. It returns
// os.ErrNotExist if there is no table.
func (t Table) Handle() (h uint64, err error) {
	err = t.dump(unix.NFT_MSG_GETTABLE, 0, nil, func(a attributes) { h = a.find(tableHandle).number() })
	return h, err
}

// Try asks the kernel whether it accepts the layout, and changes nothing. One transaction makes a dormant table of
// another name and deletes it.
func (l *Layout) Try() error {
	b := Table{
		Family:    l.Family,
		Name:      l.Name + "-try",
		signature: l.signature,
	}.Batch()
	b.Create(unix.NFT_TABLE_F_DORMANT)
	l.Build(b)
	b.add(unix.NFT_MSG_DELTABLE, 0, nil)
	return b.Commit()
}

// Exists reports whether the kernel lists the table. After an error it returns false.
func (t Table) Exists() bool {
	_, err := t.Handle()
	return err == nil
}

// CreateEmpty makes the table without content, unless it exists. An empty table is a record that lasts until the node
// restarts.
func (t Table) CreateEmpty() error {
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

// HasChain reports whether the table has a chain; false if there is no table.
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
func (t Table) HasJump(chain, target string) (has bool, err error) {
	ofChain := func(a *attributes) { a.putText(unix.NFTA_RULE_CHAIN, chain) }

	err = retryChanged(func() error {
		has = false
		return t.dump(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, ofChain, func(rule attributes) {
			for e := range rule.find(unix.NFTA_RULE_EXPRESSIONS).each(unix.NFTA_LIST_ELEM) {
				has = has || e.jumpTarget() == target
			}
		})
	})
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}

	return has, err
}

// jumpTarget returns the name of the chain to which an expression jumps; empty for any other expression.
func (a attributes) jumpTarget() string {
	if a.find(unix.NFTA_EXPR_NAME).text() != "immediate" {
		return ""
	}
	return a.find(
		unix.NFTA_EXPR_DATA,
		unix.NFTA_IMMEDIATE_DATA,
		unix.NFTA_DATA_VERDICT,
		unix.NFTA_VERDICT_CHAIN,
	).text()
}

// Content is the content of a table in the kernel.
type Content struct {
	// dormant reports whether the kernel calls no chain of the table.
	dormant bool
	// Chains are the chains by name, and Sets the names of the sets.
	Chains map[string]chainContent
	Sets   []string
	// Elements are the elements of the sets that packets do not fill.
	Elements []Element
	// Ends maps set and key of an element to the time when the kernel deletes it, if nothing renews it.
	Ends map[Element]time.Time
}

// chainContent summarizes a chain: the policy of a base chain, and the number of rules.
type chainContent struct {
	policy uint64
	// signed counts the rules that have the table's signature.
	rules, signed int
}

// hasLayout reports whether the table is in force and has these sets and chains. A chain must have as many rules, all
// of them with the table's signature. The rules themselves show neither that a table is dormant nor the policy of a
// chain.
func (c *Content) hasLayout(chains []Chain, sets []Set) bool {
	if c.dormant {
		return false
	}

	for _, want := range sets {
		if !slices.Contains(c.Sets, want.Name) {
			return false
		}
	}

	for _, want := range chains {
		got, ok := c.Chains[want.Name]
		if !ok || got.rules != len(want.Rules) || got.signed != got.rules {
			return false
		}

		if want.Kind != "" && got.policy != nfAccept {
			return false
		}
	}

	return true
}

// equals reports whether the table has a layout and the additions to it, and nothing else.
func (c *Content) equals(l *Layout, additions Change) bool {
	chains := slices.Concat(l.Chains, additions.Chains)
	sets := slices.Concat(l.Sets, additions.Sets)
	return len(c.Chains) == len(chains) &&
		len(c.Sets) == len(sets) &&
		len(c.Elements) == len(additions.Add) &&
		c.hasLayout(chains, sets) &&
		len(Diff(c.Elements, additions.Add).Add) == 0
}

// Outline lists the table's chains and the names of its sets. It returns os.ErrNotExist if there is no table. It is too
// expensive to be called often: the kernel lists the chains of the whole family, kube-proxy's too.
func (t Table) Outline() (*Content, error) {
	c := &Content{}
	err := retryChanged(func() error { return c.readOutline(t) })
	return c, err
}

// readOutline makes one attempt of Outline.
func (c *Content) readOutline(t Table) error {
	c.Chains = make(map[string]chainContent)
	c.Sets = nil

	err := t.dump(unix.NFT_MSG_GETTABLE, 0, nil, func(table attributes) {
		c.dormant = table.find(unix.NFTA_TABLE_FLAGS).number()&unix.NFT_TABLE_F_DORMANT != 0
	})
	if err != nil {
		return err
	}

	err = t.objects(unix.NFT_MSG_GETSET, func(set attributes) {
		c.Sets = append(c.Sets, set.find(unix.NFTA_SET_NAME).text())
	})
	if err != nil {
		return err
	}

	err = t.objects(unix.NFT_MSG_GETCHAIN, func(chain attributes) {
		name := chain.find(unix.NFTA_CHAIN_NAME).text()
		c.Chains[name] = chainContent{policy: chain.find(unix.NFTA_CHAIN_POLICY).number()}
	})
	if err != nil {
		return err
	}

	return t.objects(unix.NFT_MSG_GETRULE, func(rule attributes) { c.readRule(rule, t.comment()) })
}

// Packets returns the sum of the packet counters in the table's rules.
func (t Table) Packets() (n uint64, err error) {
	err = retryChanged(func() error {
		n = 0 // an interrupted listing starts again
		return t.objects(unix.NFT_MSG_GETRULE, func(a attributes) {
			for e := range a.find(unix.NFTA_RULE_EXPRESSIONS).each(unix.NFTA_LIST_ELEM) {
				n += e.packets()
			}
		})
	})

	return n, err
}

// ChainPackets returns the sum of the packet counters in the rules of a chain.
func (t Table) ChainPackets(chain string) (n uint64, err error) {
	ofChain := func(a *attributes) { a.putText(unix.NFTA_RULE_CHAIN, chain) }

	err = retryChanged(func() error {
		n = 0
		return t.dump(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, ofChain, func(rule attributes) {
			for e := range rule.find(unix.NFTA_RULE_EXPRESSIONS).each(unix.NFTA_LIST_ELEM) {
				n += e.packets()
			}
		})
	})

	return n, err
}

// objects calls fn for all objects of a type in the table. The kernel lists the objects of all tables of the family.
func (t Table) objects(typ int, fn func(attributes)) error {
	return t.dump(typ, unix.NLM_F_DUMP, nil, func(a attributes) {
		if a.find(unix.NFTA_TABLE_NAME).text() == t.Name {
			fn(a)
		}
	})
}

// readRule counts a rule in its chain. The rule is signed if it has the comment.
func (c *Content) readRule(rule attributes, comment []byte) {
	name := rule.find(unix.NFTA_RULE_CHAIN).text()
	counts := c.Chains[name]
	counts.rules++
	if bytes.Equal(rule.find(unix.NFTA_RULE_USERDATA), comment) {
		counts.signed++
	}

	c.Chains[name] = counts
}
