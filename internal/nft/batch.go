package nft

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// Batch collects the messages of one transaction on a table. The kernel applies all of it or nothing.
type Batch struct {
	table Table
	// data holds the messages; the last one begins at offset last.
	data attributes
	last int
	// sets counts the added sets: NFTA_SET_ID must be unique within a batch.
	sets uint32
}

// Batch begins a transaction.
func (t Table) Batch() *Batch {
	b := &Batch{table: t}
	b.boundary(unix.NFNL_MSG_BATCH_BEGIN)
	return b
}

// boundary appends the first or the last message of a batch. Its struct nfgenmsg names the subsystem as resource.
func (b *Batch) boundary(typ int) {
	b.last = b.data.message(typ, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, func() {})
}

// add appends a message about the table.
func (b *Batch) add(typ int, flags uint16, fill func(*attributes)) {
	b.last = b.data.tableMessage(b.table, typ, flags, fill)
}

// Create adds the table unless it exists, and sets its flags. The flags 0 wake a dormant table.
func (b *Batch) Create(flags uint32) {
	b.add(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, func(a *attributes) {
		a.putNumber(unix.NFTA_TABLE_FLAGS, flags)
	})
}

// Remove deletes the table with its content, if it exists.
func (b *Batch) Remove() {
	b.add(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, nil)
	b.add(unix.NFT_MSG_DELTABLE, 0, nil)
}

// AddChain adds a chain unless it exists, and appends its rules. The chains that it jumps to must be added before. A
// base chain gets the policy accept, even if it exists.
func (b *Batch) AddChain(c Chain) {
	b.add(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, func(a *attributes) {
		a.putText(unix.NFTA_CHAIN_NAME, c.Name)
		if c.Kind == "" {
			return
		}

		a.nest(unix.NFTA_CHAIN_HOOK, func() {
			a.putNumber(unix.NFTA_HOOK_HOOKNUM, c.Hook)
			a.putNumber(unix.NFTA_HOOK_PRIORITY, uint32(c.Priority))
		})

		a.putText(unix.NFTA_CHAIN_TYPE, c.Kind)
		a.putNumber(unix.NFTA_CHAIN_POLICY, nfAccept)
	})

	for _, r := range c.Rules {
		b.add(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, func(a *attributes) {
			a.putText(unix.NFTA_RULE_CHAIN, c.Name)
			a.nest(unix.NFTA_RULE_EXPRESSIONS, func() {
				for _, e := range r {
					a.put(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, e...)
				}
			})

			a.put(unix.NFTA_RULE_USERDATA, b.table.comment()...)
		})
	}
}

// comment returns the signature, encoded as the comment of a rule.
func (t Table) comment() []byte {
	return userdata.AppendString(nil, userdata.TypeComment, t.signature)
}

// Flush deletes all rules of the table.
func (b *Batch) Flush() {
	b.add(unix.NFT_MSG_DELRULE, 0, nil)
}

// DeleteChain deletes a chain and its rules.
func (b *Batch) DeleteChain(name string) {
	b.add(unix.NFT_MSG_DELCHAIN, 0, func(a *attributes) { a.putText(unix.NFTA_CHAIN_NAME, name) })
}

// DeleteSet deletes a set that no rule refers to.
func (b *Batch) DeleteSet(name string) {
	b.add(unix.NFT_MSG_DELSET, 0, func(a *attributes) { a.putText(unix.NFTA_SET_NAME, name) })
}

// setExpr is NFTA_SET_EXPR of linux/netfilter/nf_tables.h.
const setExpr = 17

// AddSet adds an empty set.
func (b *Batch) AddSet(s Set) {
	b.sets++
	b.add(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, func(a *attributes) {
		s.encode(a)
		a.putNumber(unix.NFTA_SET_ID, b.sets)
	})
}

// encode appends the attributes of the set.
func (s Set) encode(a *attributes) {
	a.putText(unix.NFTA_SET_NAME, s.Name)
	a.putNumber(unix.NFTA_SET_FLAGS, s.Flags)
	number, size := s.Key.spec()
	a.putNumber(unix.NFTA_SET_KEY_TYPE, number)
	a.putNumber(unix.NFTA_SET_KEY_LEN, size)
	switch {
	case !s.isMap():
	case s.verdicts():
		a.putNumber(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	default:
		number, size := Key{s.Data}.spec()
		a.putNumber(unix.NFTA_SET_DATA_TYPE, number)
		a.putNumber(unix.NFTA_SET_DATA_LEN, size)
	}

	if s.Size > 0 {
		a.nest(unix.NFTA_SET_DESC, func() {
			a.putNumber(unix.NFTA_SET_DESC_SIZE, s.Size)
		})
	}

	if s.Timeout > 0 {
		milliseconds := uint64(s.Timeout.Milliseconds())
		a.put(unix.NFTA_SET_TIMEOUT, binary.BigEndian.AppendUint64(nil, milliseconds)...)
	}

	if s.Counter {
		a.nest(setExpr, func() {
			a.putText(unix.NFTA_EXPR_NAME, "counter")
			a.nest(unix.NFTA_EXPR_DATA, func() {})
		})
	}
}

// elementsPerMessage keeps the element list of a message below 64 KiB, the limit of an attribute.
const elementsPerMessage = 300

// FlushSet deletes all elements of a set.
func (b *Batch) FlushSet(name string) {
	b.add(unix.NFT_MSG_DELSETELEM, 0, func(a *attributes) { a.putText(unix.NFTA_SET_ELEM_LIST_SET, name) })
}

// AddElements adds elements to sets of a layout.
func (b *Batch) AddElements(l *Layout, elements []Element) {
	b.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, l, elements)
}

// DeleteElements deletes elements from sets of a layout. The kernel refuses the batch if one does not exist.
func (b *Batch) DeleteElements(l *Layout, elements []Element) {
	b.elements(unix.NFT_MSG_DELSETELEM, 0, l, elements)
}

// elements appends messages about elements: one message per set, or several for a set of many elements.
func (b *Batch) elements(typ int, flags uint16, l *Layout, list []Element) {
	bySet := func(a, b Element) int { return strings.Compare(a.Set, b.Set) }
	list = slices.SortedStableFunc(slices.Values(list), bySet)

	for len(list) > 0 {
		set := l.Set(list[0].Set)
		n := 1
		for n < min(len(list), elementsPerMessage) && list[n].Set == set.Name {
			n++
		}

		chunk := list[:n]
		list = list[n:]
		b.add(typ, flags, func(a *attributes) {
			a.putText(unix.NFTA_SET_ELEM_LIST_SET, set.Name)
			a.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
				for _, e := range chunk {
					set.encodeElement(a, e)
				}
			})
		})
	}
}

// encodeElement appends an element. An interval is two elements: its start, and its end unless it is open.
func (s Set) encodeElement(a *attributes, e Element) {
	a.nest(unix.NFTA_LIST_ELEM, func() { s.encodeKey(a, e) })
	isOpen := e.Value == ""
	if !s.Intervals() || isOpen {
		return
	}

	a.nest(unix.NFTA_LIST_ELEM, func() {
		a.putNumber(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
		s.encodeKey(a, Element{Key: e.Value})
	})
}

// encodeKey appends the key of an element, and in a map its data.
func (s Set) encodeKey(a *attributes, e Element) {
	a.nest(unix.NFTA_SET_ELEM_KEY, func() {
		a.put(unix.NFTA_DATA_VALUE, []byte(e.Key)...)
	})
	if !s.isMap() {
		return
	}

	a.nest(unix.NFTA_SET_ELEM_DATA, func() {
		if s.verdicts() {
			encodeVerdict(a, e.Value)
			return
		}

		a.put(unix.NFTA_DATA_VALUE, []byte(e.Value)...)
	})
}

// nfJump is NFT_JUMP of linux/netfilter/nf_tables.h, a negative number, as the kernel encodes it in 32 bits.
const nfJump = math.MaxUint32 + 1 + unix.NFT_JUMP

// encodeVerdict appends the verdict that jumps to a chain, or accepts if the name is Accepted.
func encodeVerdict(a *attributes, chain string) {
	a.nest(unix.NFTA_DATA_VERDICT, func() {
		if chain == Accepted {
			a.putNumber(unix.NFTA_VERDICT_CODE, nfAccept)
			return
		}

		a.putNumber(unix.NFTA_VERDICT_CODE, nfJump)
		a.putText(unix.NFTA_VERDICT_CHAIN, chain)
	})
}
