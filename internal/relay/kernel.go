package relay

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
)

// sendBuffer is that of a netlink socket, in bytes: a transaction is one message to it, and 10,000 relays are
// more than it holds by default. It bounds, nothing is set aside.
const sendBuffer = 64 << 20

// elementsPerMessage keeps the list of a message within the 64 KiB of an attribute.
const elementsPerMessage = 300

// content is what one table holds beside its rules, in the form of the kernel.
type content struct {
	// relays has an address of ours and the former owner's, links the index of the link to that one.
	relays, links members
	// speakers are MACs.
	speakers members
}

// members of a set, and what a map has for each.
type members map[string]string

func newContent() content { return content{relays: members{}, links: members{}, speakers: members{}} }

func (c content) equal(o content) bool {
	return maps.Equal(c.relays, o.relays) && maps.Equal(c.links, o.links) && maps.Equal(c.speakers, o.speakers)
}

// without returns the members whose keys o has not.
func (c content) without(o content) content {
	out := newContent()
	for i, list := range out.of() {
		for key, value := range c.of()[i] {
			if _, has := o.of()[i][key]; !has {
				list[key] = value
			}
		}
	}
	return out
}

// with returns what holds the members of both.
func (c content) with(more content) content {
	out := newContent()
	for i, list := range out.of() {
		maps.Copy(list, c.of()[i])
		maps.Copy(list, more.of()[i])
	}
	return out
}

// of returns the members in the order of the layout's sets.
func (c content) of() []members { return []members{c.relays, c.links, c.speakers} }

func connect() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error { return c.SetWriteBuffer(sendBuffer) }))
	if err != nil {
		return nil, fmt.Errorf("open nf_tables: %w", err)
	}
	return c, nil
}

// build makes the table anew with this content, whatever is there, in one transaction.
func (l *layout) build(want content) error {
	return l.commit(want, func(c *nftables.Conn) error {
		c.AddTable(l.table)
		c.DelTable(l.table)
		c.AddTable(l.table)
		for _, s := range l.sets() {
			if err := c.AddSet(s, nil); err != nil {
				return err
			}
		}
		for _, chain := range l.chains {
			c.AddChain(chain.Chain)
			for _, r := range chain.rules {
				c.AddRule(&nftables.Rule{Table: l.table, Chain: chain.Chain, Exprs: r, UserData: l.signature})
			}
		}
		return nil
	})
}

// fill makes this the content of the table, which must be there, in one transaction: no packet meets an empty map.
// All members get their whole time again.
func (l *layout) fill(want content) error {
	return l.commit(want, func(c *nftables.Conn) error {
		for _, s := range l.sets() {
			c.FlushSet(s)
		}
		return nil
	})
}

// add adds members to the table, which must be there. It takes a tenth of the time of fill, which waits for the
// kernel to forget what an earlier transaction took out.
func (l *layout) add(more content) error {
	return l.commit(more, func(*nftables.Conn) error { return nil })
}

// commit adds the members of all sets to what prepare begins, and has the kernel take all of it or nothing.
func (l *layout) commit(want content, prepare func(*nftables.Conn) error) error {
	c, err := connect()
	if err != nil {
		return err
	}
	if err := prepare(c); err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	for i, s := range l.sets() {
		var list []nftables.SetElement
		for key, value := range want.of()[i] {
			e := nftables.SetElement{Key: []byte(key), Val: []byte(value)}
			if s.HasTimeout {
				e.Timeout = linger
			}
			list = append(list, e)
		}
		for some := range slices.Chunk(list, elementsPerMessage) {
			if err := c.SetAddElements(s, some); err != nil {
				return fmt.Errorf("add members to %s: %w", s.Name, err)
			}
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("commit to nf_tables: %w", err)
	}
	return nil
}

// read returns what the table holds. It returns os.ErrNotExist where there is none, or one with other rules.
func (l *layout) read() (content, error) {
	is := newContent()
	c, err := connect()
	if err != nil {
		return is, err
	}
	if _, err := c.GetSetByName(l.table, l.relays.Name); err != nil {
		return is, fmt.Errorf("look for %s: %w", l.relays.Name, err)
	}
	for _, chain := range l.chains {
		rules, err := c.GetRules(l.table, chain.Chain)
		if err != nil {
			return is, fmt.Errorf("list rules of %s: %w", chain.Name, err)
		}
		others := slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return !bytes.Equal(r.UserData, l.signature) })
		if others || len(rules) != len(chain.rules) {
			return is, fmt.Errorf("%s has other rules: %w", chain.Name, os.ErrNotExist)
		}
	}
	for i, s := range l.sets() {
		list, err := c.GetSetElements(s)
		if err != nil {
			return is, fmt.Errorf("list %s: %w", s.Name, err)
		}
		for _, e := range list {
			is.of()[i][string(e.Key)] = string(e.Val)
		}
	}
	return is, nil
}

// packets counts what the table has relayed since it was made.
func (l *layout) packets() (n uint64, err error) {
	c, err := connect()
	if err != nil {
		return 0, err
	}
	for _, chain := range l.chains {
		rules, err := c.GetRules(l.table, chain.Chain)
		if err != nil {
			return 0, fmt.Errorf("list rules of %s: %w", chain.Name, err)
		}
		for _, r := range rules {
			for _, e := range r.Exprs {
				if counter, ok := e.(*expr.Counter); ok {
					n += counter.Packets
				}
			}
		}
	}
	return n, nil
}

// remove deletes the table, if there is one.
func (l *layout) remove() error {
	c, err := connect()
	if err != nil {
		return err
	}
	c.AddTable(l.table)
	c.DelTable(l.table)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("delete table: %w", err)
	}
	return nil
}
