package nft

import (
	"encoding/binary"
	"iter"
	"strings"

	"golang.org/x/sys/unix"
)

// attributes is a sequence of encoded netlink attributes. They are appended and read in place, without copies: a table
// may hold tens of thousands of elements.
type attributes []byte

// put appends an attribute.
func (a *attributes) put(typ uint16, data ...byte) {
	at := a.open(typ)
	*a = append(*a, data...)
	a.close(at)
}

// putText appends an attribute that is a C string.
func (a *attributes) putText(typ uint16, s string) {
	at := a.open(typ)
	*a = append(append(*a, s...), 0)
	a.close(at)
}

// putNumber appends a 32-bit attribute; nf_tables expects network byte order.
func (a *attributes) putNumber(typ uint16, n uint32) {
	a.put(typ, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

// nest appends an attribute that contains other attributes.
func (a *attributes) nest(typ uint16, fill func()) {
	at := a.open(typ | unix.NLA_F_NESTED)
	fill()
	a.close(at)
}

// message appends a netfilter message with its struct nfgenmsg (family, version, resource), and returns its offset.
func (a *attributes) message(typ int, flags uint16, family, resource byte, fill func()) int {
	at := len(*a)
	*a = append(*a, make([]byte, unix.NLMSG_HDRLEN)...)
	binary.NativeEndian.PutUint16((*a)[at+4:], uint16(typ))
	binary.NativeEndian.PutUint16((*a)[at+6:], flags|unix.NLM_F_REQUEST)
	*a = append(*a, family, unix.NFNETLINK_V0, 0, resource)
	fill()
	binary.NativeEndian.PutUint32((*a)[at:], uint32(len(*a)-at))
	return at
}

// tableMessage appends a message about a table and returns its offset. The first attribute is always the table's name.
func (a *attributes) tableMessage(t Table, typ int, flags uint16, fill func(*attributes)) int {
	return a.message(unix.NFNL_SUBSYS_NFTABLES<<8|typ, flags, t.Family, 0, func() {
		a.putText(unix.NFTA_TABLE_NAME, t.Name)
		if fill != nil {
			fill(a)
		}
	})
}

// open begins an attribute and returns its offset.
func (a *attributes) open(typ uint16) int {
	at := len(*a)
	*a = append(*a, 0, 0, 0, 0)
	binary.NativeEndian.PutUint16((*a)[at+2:], typ)
	return at
}

// close ends the attribute that begins at an offset: it writes the length and pads the attribute to four bytes.
func (a *attributes) close(at int) {
	binary.NativeEndian.PutUint16((*a)[at:], uint16(len(*a)-at))
	for len(*a)%unix.NLA_ALIGNTO != 0 {
		*a = append(*a, 0)
	}
}

// each returns the data of every attribute of a type. It stops at the first malformed attribute.
func (a attributes) each(typ uint16) iter.Seq[attributes] {
	return func(yield func(attributes) bool) {
		for len(a) >= unix.NLA_HDRLEN {
			size := int(binary.NativeEndian.Uint16(a))
			if size < unix.NLA_HDRLEN || size > len(a) {
				return
			}

			found := binary.NativeEndian.Uint16(a[2:]) &^ unix.NLA_F_NESTED
			if found == typ && !yield(a[unix.NLA_HDRLEN:size]) {
				return
			}

			padded := (size + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1)
			a = a[min(len(a), padded):]
		}
	}
}

// find follows a path of attribute types and returns the data of the first match; nil if there is none.
func (a attributes) find(path ...uint16) attributes {
	for _, typ := range path {
		parent := a
		a = nil
		for a = range parent.each(typ) {
			break
		}
	}

	return a
}

// Attribute follows a path of attribute types in a netlink message and returns the data of the first match; nil if
// there is none.
func Attribute(message []byte, path ...uint16) []byte {
	return attributes(message).find(path...)
}

// text decodes a C string.
func (a attributes) text() string {
	return strings.TrimSuffix(string(a), "\x00")
}

// number decodes an unsigned integer of any size in network byte order.
func (a attributes) number() (n uint64) {
	for _, octet := range a {
		n = n<<8 | uint64(octet)
	}
	return n
}
