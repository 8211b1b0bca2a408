package filter

import (
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// content is what the table holds: chains, names of sets, and members.
type content struct {
	chains  map[string]*found
	sets    []string
	members []member
}

// found is a chain that is there.
type found struct {
	// hooked: it is a base chain.
	hooked bool
	rules  int
}

// outline lists the table's chains and sets. It returns os.ErrNotExist where there is no table.
func outline() (*content, error) {
	if _, err := handle(); err != nil {
		return nil, err
	}
	c := &content{chains: make(map[string]*found)}
	chain := func(name string) *found {
		if c.chains[name] == nil {
			c.chains[name] = &found{}
		}
		return c.chains[name]
	}
	return c, errors.Join(
		dump(unix.NFT_MSG_GETCHAIN, netlink.Dump, nil, named(unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, unix.NFTA_CHAIN_HOOK,
			func(name string, hooked bool) { chain(name).hooked = hooked })),
		dump(unix.NFT_MSG_GETRULE, netlink.Dump, nil, named(unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, 0,
			func(name string, _ bool) { chain(name).rules++ })),
		dump(unix.NFT_MSG_GETSET, netlink.Dump, nil, named(unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, 0,
			func(name string, _ bool) { c.sets = append(c.sets, name) })),
	)
}

// named reads objects of our table by the types of their attributes: table, name, and one that may be there.
func named(table, name, mark uint16, fn func(name string, marked bool)) func(*netlink.AttributeDecoder) error {
	return func(ad *netlink.AttributeDecoder) error {
		var in, of string
		marked := false
		for ad.Next() {
			switch ad.Type() {
			case table:
				in = ad.String()
			case name:
				of = ad.String()
			case mark:
				marked = true
			}
		}
		if in == tableName {
			fn(of, marked)
		}
		return ad.Err()
	}
}

// read lists the table, but for the members of sets that packets fill.
func read(sets map[string]set) (*content, error) {
	c, err := outline()
	if err != nil {
		return nil, err
	}
	for _, name := range c.sets {
		s, ok := sets[name]
		if !ok || s.flags&unix.NFT_SET_EVAL != 0 {
			continue
		}
		listed, err := s.list()
		if err != nil {
			return nil, err
		}
		for _, e := range listed {
			c.members = append(c.members, member{name, e.element})
		}
	}
	return c, nil
}

// clear empties the table but for base chains and sets of intervals that are wanted; these lose their rules and
// elements. False if one of them is there as something else.
func (c *content) clear(b *batch, chains []chain, sets map[string]set) bool {
	keep := make(map[string]bool)
	for _, w := range chains {
		if is := c.chains[w.name]; is != nil && is.hooked != (w.kind != "") {
			return false
		}
		keep[w.name] = w.kind != ""
	}
	b.flush()
	for _, name := range c.sets {
		if sets[name].intervals() {
			b.flushSet(name)
		} else {
			b.deleteSet(name)
		}
	}
	for name := range c.chains {
		if !keep[name] {
			b.deleteChain(name)
		}
	}
	return true
}
