package nft

import (
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Type is the type of a value. The last octet is the size in bytes. The other bits are the number of the type in
// include/datatype.h of nftables, by which the nft command decides how to print a value.
type Type uint32

// Types of keys and data.
const (
	Verdict     Type = 1 << 8
	IPv4Address Type = 7<<8 | 4
	IPv6Address Type = 8<<8 | 16
	MAC         Type = 9<<8 | 6
	Protocol    Type = 12<<8 | 1
	Port        Type = 13<<8 | 2
	Mark        Type = 19<<8 | 4
	LinkIndex   Type = 20<<8 | 4
	LinkName    Type = 41<<8 | 16
)

// Key lists the types of a key's fields. In a key of several fields each field fills whole registers.
type Key []Type

// spec returns the type number and the size of a key.
func (k Key) spec() (number, size uint32) {
	for _, t := range k {
		number = number<<6 | uint32(t>>8)
		size = registers(size) + uint32(t&0xff)
	}

	if len(k) > 1 {
		size = registers(size)
	}

	return number, size
}

// registers rounds a size in bytes up to whole registers of 4 bytes.
func registers(size uint32) uint32 {
	return (size + 3) &^ 3
}

// Set is a set or a map, without its elements. Without unix.NFT_SET_INTERVAL it is a hash table: the cost to add or to
// delete an element does not depend on the number of elements.
type Set struct {
	Name string
	Key  Key
	// Flags are NFT_SET_… of linux/netfilter/nf_tables.h.
	Flags uint32
	// Data is the type of a map's values.
	Data Type
	// Counter has each element count the packets that match it.
	Counter bool
	// Size limits the number of elements. A set that packets fill needs it.
	Size uint32
	// Timeout is the lifetime of an element; 0 for no limit.
	Timeout time.Duration
}

// isMap reports whether the set maps keys to values.
func (s Set) isMap() bool {
	return s.Flags&unix.NFT_SET_MAP != 0
}

// verdicts reports whether the set maps keys to verdicts.
func (s Set) verdicts() bool {
	return s.Data == Verdict
}

// Intervals reports whether the elements of the set are intervals of keys.
func (s Set) Intervals() bool {
	return s.Flags&unix.NFT_SET_INTERVAL != 0
}

// Element is one element of a set or a map. Key and Value are bytes in the order in which the kernel holds them.
type Element struct {
	// Set is the name of the set.
	Set string
	// Key is the key; in an interval set, the first key of the interval.
	Key string
	// Value is the data of a map's element; in a verdict map, the name of the chain to jump to. In an interval set it
	// is the first key after the interval, empty if there is none.
	Value string
}

// Elements is a list of elements, which may be of several sets.
type Elements []Element

// Put adds an element.
func (l *Elements) Put(set, key, value string) {
	*l = append(*l, Element{set, key, value})
}

// Merged returns the intervals of a set in order. It joins intervals that touch or overlap, because the kernel
// refuses them.
func (l Elements) Merged() (out Elements) {
	slices.SortFunc(l, func(a, b Element) int { return strings.Compare(a.Key, b.Key) })
	for _, e := range l {
		if len(out) == 0 {
			out = append(out, e)
			continue
		}

		last := &out[len(out)-1]
		isOpen := last.Value == ""
		switch {
		case isOpen:
		case last.Value < e.Key:
			out = append(out, e)
		case e.Value == "" || last.Value < e.Value:
			last.Value = e.Value
		}
	}

	return out
}

// Accepted is the Value in a verdict map that accepts the packet and jumps to no chain.
const Accepted = ""

// nfAccept is NF_ACCEPT of linux/netfilter.h.
const nfAccept = 1
