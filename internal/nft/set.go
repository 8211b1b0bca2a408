package nft

import (
	"time"

	"golang.org/x/sys/unix"
)

// Type is the type of a value: its number in include/datatype.h of nftables, from which the nft command knows how to
// show it, and its size in the last octet.
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

// Key lists the types of a key's fields. In a concatenation each field fills whole registers.
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

// registers rounds a size up to whole registers.
func registers(size uint32) uint32 { return (size + 3) &^ 3 }

// Set is a set or map. Without unix.NFT_SET_INTERVAL it is a hash table: the cost to add or delete an element does not
// depend on the number of elements.
type Set struct {
	Name string
	Key  Key
	// Flags are NFT_SET_… of linux/netfilter/nf_tables.h.
	Flags uint32
	// Data is the type of a map's values.
	Data Type
	// Counter: each element counts matching packets.
	Counter bool
	// Size limits the elements of a set that packets fill; Timeout is the lifetime of elements.
	Size    uint32
	Timeout time.Duration
}

// verdicts reports whether the set is a verdict map.
func (s Set) verdicts() bool { return s.Data == Verdict }

// Intervals reports whether the set's elements are intervals.
func (s Set) Intervals() bool { return s.Flags&unix.NFT_SET_INTERVAL != 0 }

// Element is one element of a set or map, in the byte order of the kernel.
type Element struct {
	// Set is the name of its set.
	Set, Key string
	// Value is the data of a map's element: bytes, or the name of a verdict's target chain. In an interval set Key
	// is the start of the interval and Value the first key after it, empty if there is none.
	Value string
}

// Elements are elements of several sets.
type Elements []Element

// Put adds an element.
func (l *Elements) Put(set, key, value string) { *l = append(*l, Element{set, key, value}) }

// Accepted is the Value of a verdict that accepts the packet and does not jump to a chain.
const Accepted = ""

// nfAccept is NF_ACCEPT of linux/netfilter.h.
const nfAccept = 1
