package filter

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// tableName is the name of our table, of the family inet. No other is touched.
const tableName = "holdfast"

// attributes is a run of netlink attributes in the making. A whole table is
// tens of thousands of elements, so they are appended in place rather than
// nested by copying.
type attributes []byte

// put appends an attribute.
func (a *attributes) put(typ uint16, data ...byte) {
	at := a.open(typ)
	*a = append(*a, data...)
	a.close(at)
}

// text appends an attribute that is a C string.
func (a *attributes) text(typ uint16, s string) {
	at := a.open(typ)
	*a = append(append(*a, s...), 0)
	a.close(at)
}

// number appends a 32-bit attribute; nf_tables has them in network order.
func (a *attributes) number(typ uint16, n uint32) {
	a.put(typ, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

// nest appends an attribute that holds others.
func (a *attributes) nest(typ uint16, fill func()) {
	at := a.open(typ | unix.NLA_F_NESTED)
	fill()
	a.close(at)
}

// open begins an attribute and returns where.
func (a *attributes) open(typ uint16) int {
	at := len(*a)
	*a = append(*a, 0, 0, 0, 0)
	binary.NativeEndian.PutUint16((*a)[at+2:], typ)
	return at
}

// close writes the length of the attribute that began at a place, and pads it to four bytes.
func (a *attributes) close(at int) {
	binary.NativeEndian.PutUint16((*a)[at:], uint16(len(*a)-at))
	for len(*a)%unix.NLA_ALIGNTO != 0 {
		*a = append(*a, 0)
	}
}

// batch is a transaction in the making: the kernel takes all of it or nothing.
type batch struct {
	messages []netlink.Message
	// sets counts those that are added: each has a number of its own within the batch.
	sets uint32
}

// add appends a message of nf_tables about our table, whose name is always the first attribute.
func (b *batch) add(typ int, flags netlink.HeaderFlags, fill func(*attributes)) {
	// struct nfgenmsg: family, version, resource.
	a := attributes{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}
	a.text(unix.NFTA_TABLE_NAME, tableName)
	if fill != nil {
		fill(&a)
	}
	b.messages = append(b.messages, netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ), Flags: netlink.Request | flags},
		Data:   a,
	})
}

// create adds the table; there may be one.
func (b *batch) create() { b.add(unix.NFT_MSG_NEWTABLE, netlink.Create, nil) }

// destroy deletes the table, which must be there, with all that is in it.
func (b *batch) destroy() { b.add(unix.NFT_MSG_DELTABLE, 0, nil) }

// addChain adds a chain without its rules, so that others may go to it.
func (b *batch) addChain(c chain) {
	b.add(unix.NFT_MSG_NEWCHAIN, netlink.Create, func(a *attributes) {
		a.text(unix.NFTA_CHAIN_NAME, c.name)
		if c.kind == "" {
			return
		}
		a.nest(unix.NFTA_CHAIN_HOOK, func() {
			a.number(unix.NFTA_HOOK_HOOKNUM, c.hook)
			a.number(unix.NFTA_HOOK_PRIORITY, uint32(c.priority))
		})
		a.text(unix.NFTA_CHAIN_TYPE, c.kind)
	})
}

// addRules appends the rules of a chain.
func (b *batch) addRules(c chain) {
	for _, r := range c.rules {
		b.add(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, func(a *attributes) {
			a.text(unix.NFTA_RULE_CHAIN, c.name)
			a.nest(unix.NFTA_RULE_EXPRESSIONS, func() {
				for _, e := range r {
					a.put(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, e...)
				}
			})
		})
	}
}

// flush deletes all rules.
func (b *batch) flush() { b.add(unix.NFT_MSG_DELRULE, 0, nil) }

// deleteChain deletes a chain and its rules.
func (b *batch) deleteChain(name string) {
	b.add(unix.NFT_MSG_DELCHAIN, 0, func(a *attributes) { a.text(unix.NFTA_CHAIN_NAME, name) })
}

// deleteSet deletes a set that no rule uses.
func (b *batch) deleteSet(name string) {
	b.add(unix.NFT_MSG_DELSET, 0, func(a *attributes) { a.text(unix.NFTA_SET_NAME, name) })
}

// setExpr is NFTA_SET_EXPR of linux/netfilter/nf_tables.h.
const setExpr = 17

// addSet adds an empty set.
func (b *batch) addSet(s set) {
	b.sets++
	b.add(unix.NFT_MSG_NEWSET, netlink.Create, func(a *attributes) {
		a.text(unix.NFTA_SET_NAME, s.name)
		a.number(unix.NFTA_SET_FLAGS, s.flags)
		a.number(unix.NFTA_SET_KEY_TYPE, s.key.GetNFTMagic())
		a.number(unix.NFTA_SET_KEY_LEN, s.key.Bytes)
		a.number(unix.NFTA_SET_ID, b.sets)
		if s.flags&unix.NFT_SET_MAP != 0 {
			if s.verdicts() {
				a.number(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
			} else {
				a.number(unix.NFTA_SET_DATA_TYPE, s.data.GetNFTMagic())
				a.number(unix.NFTA_SET_DATA_LEN, s.data.Bytes)
			}
		}
		if s.size > 0 {
			a.nest(unix.NFTA_SET_DESC, func() { a.number(unix.NFTA_SET_DESC_SIZE, s.size) })
		}
		if s.timeout > 0 {
			a.put(unix.NFTA_SET_TIMEOUT, binary.BigEndian.AppendUint64(nil, uint64(s.timeout.Milliseconds()))...)
		}
		if s.counter {
			a.nest(setExpr, func() {
				a.text(unix.NFTA_EXPR_NAME, "counter")
				a.nest(unix.NFTA_EXPR_DATA, func() {})
			})
		}
	})
}

// elementsPerMessage keeps the list of a message within the 64 KiB of an attribute.
const elementsPerMessage = 300

// flushSet deletes all members of a set.
func (b *batch) flushSet(name string) {
	b.add(unix.NFT_MSG_DELSETELEM, 0, func(a *attributes) { a.text(unix.NFTA_SET_ELEM_LIST_SET, name) })
}

// addElements adds members to a set.
func (b *batch) addElements(s set, elements []element) {
	b.elements(unix.NFT_MSG_NEWSETELEM, netlink.Create, s, elements)
}

// deleteElements deletes members, which must be there.
func (b *batch) deleteElements(s set, elements []element) {
	b.elements(unix.NFT_MSG_DELSETELEM, 0, s, elements)
}

func (b *batch) elements(typ int, flags netlink.HeaderFlags, s set, elements []element) {
	for some := range slices.Chunk(elements, elementsPerMessage) {
		b.add(typ, flags, func(a *attributes) {
			a.text(unix.NFTA_SET_ELEM_LIST_SET, s.name)
			a.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
				for _, e := range some {
					a.nest(unix.NFTA_LIST_ELEM, func() { s.encode(a, e) })
					if s.intervals() && e.value != "" {
						a.nest(unix.NFTA_LIST_ELEM, func() {
							a.number(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
							s.encode(a, element{key: e.value})
						})
					}
				}
			})
		})
	}
}

// encode appends what the kernel is told of an element.
func (s set) encode(a *attributes, e element) {
	a.nest(unix.NFTA_SET_ELEM_KEY, func() { a.put(unix.NFTA_DATA_VALUE, []byte(e.key)...) })
	switch {
	case s.flags&unix.NFT_SET_MAP == 0:
	case s.verdicts():
		a.nest(unix.NFTA_SET_ELEM_DATA, func() {
			a.nest(unix.NFTA_DATA_VERDICT, func() {
				if e.value == accepted {
					a.number(unix.NFTA_VERDICT_CODE, nfAccept)
					return
				}
				a.number(unix.NFTA_VERDICT_CODE, uint32(math.MaxUint32+1+unix.NFT_JUMP))
				a.text(unix.NFTA_VERDICT_CHAIN, e.value)
			})
		})
	default:
		a.nest(unix.NFTA_SET_ELEM_DATA, func() { a.put(unix.NFTA_DATA_VALUE, []byte(e.value)...) })
	}
}
