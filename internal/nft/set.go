package nft

import (
	"time"

	"golang.org/x/sys/unix"
)

// Type is what a value is: its number in include/datatype.h of nftables, by which the nft command shows it, and
// its size in the last octet.
type Type uint32

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

// Key is the types of the values that a key is made of. Each fills whole registers where there are several.
type Key []Type

// spec returns number and size of a key.
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

// Set is a set or map. Without unix.NFT_SET_INTERVAL it is a hash table: an element more or less costs the same
// among ten and among a hundred thousand.
type Set struct {
	Name string
	Key  Key
	// Flags are NFT_SET_… of linux/netfilter/nf_tables.h.
	Flags uint32
	// Data is what a map maps to.
	Data Type
	// Counter: each element counts the packets that match it.
	Counter bool
	// Size bounds a set that packets fill, Timeout is the life of its elements.
	Size    uint32
	Timeout time.Duration
}

// verdicts reports whether the set maps to verdicts.
func (s Set) verdicts() bool { return s.Data == Verdict }

// Intervals reports whether the set's elements are intervals.
func (s Set) Intervals() bool { return s.Flags&unix.NFT_SET_INTERVAL != 0 }

// Element is one member of a set as the kernel keeps it.
type Element struct {
	Key string
	// Value is what a map holds: an address, or the chain to go to. An interval begins at Key, and Value is
	// the first key after it; empty if there is none.
	Value string
}

// Accepted is the value of a verdict that lets in rather than goes to a chain.
const Accepted = ""

// nfAccept is NF_ACCEPT of linux/netfilter.h.
const nfAccept = 1

// Member is an element and the set it is in.
type Member struct {
	Set string
	Element
}
