package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// dormant is NFT_TABLE_F_DORMANT of linux/netfilter/nf_tables.h: the kernel calls no chain of the table.
const dormant = 1

// Try has the kernel check the layout without an effect: one transaction makes the table, under another name and
// dormant, and deletes it. If the kernel refuses the layout, Try returns the error and names the first part that it refuses:
// a kind of sets or of chains, or an expression. The part is empty if the kernel refuses even an empty table, and if a kernel
// before 5.7 does not say which expression it was.
func (l *Layout) Try() (part string, err error) {
	b := Table{Family: l.Family, Name: l.Name + "-try", signature: l.signature}.Batch()
	b.create(dormant)
	l.Build(b)
	b.add(unix.NFT_MSG_DELTABLE, 0, nil)
	var r *Refusal
	if err = b.Commit(); errors.As(err, &r) && r.message > 0 {
		part = l.part(b.data[b.messages[r.message-1]:], r.at)
	}
	return part, err
}

// part names the part that a message makes; of a rule, the expression at an offset.
func (l *Layout) part(message attributes, at int) string {
	body := message[unix.NLMSG_HDRLEN+HeaderSize:]
	switch binary.NativeEndian.Uint16(message[4:]) & 0xff {
	case unix.NFT_MSG_NEWSET:
		return l.Set(body.find(unix.NFTA_SET_NAME).text()).kind()
	case unix.NFT_MSG_NEWCHAIN:
		name := body.find(unix.NFTA_CHAIN_NAME).text()
		return l.Chains[slices.IndexFunc(l.Chains, func(c Chain) bool { return c.Name == name })].kind()
	case unix.NFT_MSG_NEWRULE:
		if at > 0 {
			return nameOf(message[at:].find(unix.NFTA_LIST_ELEM))
		}
	}
	return ""
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
func nameOf(a attributes) string {
	name := a.find(unix.NFTA_EXPR_NAME).text()
	if inner := a.find(unix.NFTA_EXPR_DATA, unix.NFTA_DYNSET_EXPR, unix.NFTA_EXPR_NAME); name == "dynset" && inner != nil {
		return inner.text()
	}
	return name
}
