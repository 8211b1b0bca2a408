package filter

import (
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// set is a set or map of the table. Without unix.NFT_SET_INTERVAL it is a hash
// table: an element more or less costs the same among ten and among a hundred
// thousand.
type set struct {
	name string
	key  nftables.SetDatatype
	// flags are NFT_SET_… of linux/netfilter/nf_tables.h.
	flags uint32
	// data is what a map maps to.
	data nftables.SetDatatype
	// counter: each element counts the packets that match it.
	counter bool
	// size bounds a set that packets fill, timeout is the life of its elements.
	size    uint32
	timeout time.Duration
}

// verdicts reports whether the set maps to verdicts.
func (s set) verdicts() bool { return s.data.Name == nftables.TypeVerdict.Name }

// intervals reports whether the set's elements are intervals.
func (s set) intervals() bool { return s.flags&unix.NFT_SET_INTERVAL != 0 }

// element is one member of a set as the kernel keeps it.
type element struct {
	key string
	// value is what a map holds: an address, or the chain to go to. An interval begins at key, and value is
	// the first key after it; empty if there is none.
	value string
}

// accepted is the value of a verdict that lets in rather than goes to a chain.
const accepted = ""

// nfAccept is NF_ACCEPT of linux/netfilter.h.
const nfAccept = 1

// member is an element and the set it is in.
type member struct {
	set string
	element
}

// The sets of each family; the family's suffix is added to each name.
const (
	// guardedSet holds the addresses that are closed but for their doors.
	guardedSet = "guarded"
	// resetSet holds those whose closed ports answer.
	resetSet = "reset"
	// pingsSet holds those that answer echo requests, pingersSet who asked lately and how often.
	pingsSet   = "pings"
	pingersSet = "pingers"
	// relayedSet holds the addresses whose older connections another node serves.
	relayedSet = "relayed"
	// addressesSet holds the addresses of doors.
	addressesSet = "addresses"
	// doorsSet maps a door to its verdict and counts who comes to it.
	doorsSet = "doors"
	// allowSet and denySet hold a door and a prefix of sources.
	allowSet = "allow"
	denySet  = "deny"
	// dropsSet counts what a door refuses, by reason; a key of zeros with the reason counts what came to no door.
	dropsSet = "drops"
	// loggedSet holds the doors whose drops are logged.
	loggedSet = "logged"
	// podsSet holds the sources that are this node's pods.
	podsSet = "pods"
	// internalSet maps a door to its ClusterIP, externalSet a port of the ClusterIP to the address of the door.
	internalSet = "internal"
	externalSet = "external"
)

// uplinksSet holds the names of the links that lead out of the node.
const uplinksSet = "uplinks"

// sourceMemory bounds how many sources are remembered at once, and memoryTimeout for how long.
const (
	sourceMemory  = 65535
	memoryTimeout = 10 * time.Second
)

// named returns the name of a set or chain of the family.
func (f *family) named(base string) string { return base + f.suffix }

// sets returns the sets of the family that are always there.
func (f *family) sets() []set {
	door, prefix := f.doorKey(), f.prefixKey()
	reason := nftables.MustConcatSetType(f.addrType, nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeMark)
	list := []set{
		{name: guardedSet, key: f.addrType, flags: unix.NFT_SET_INTERVAL},
		{name: resetSet, key: f.addrType, flags: unix.NFT_SET_INTERVAL},
		{name: podsSet, key: f.addrType, flags: unix.NFT_SET_INTERVAL},
		{name: addressesSet, key: f.addrType},
		{name: relayedSet, key: f.addrType},
		{name: pingsSet, key: f.addrType},
		{name: pingersSet, key: f.addrType, flags: unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT, size: sourceMemory, timeout: memoryTimeout},
		{name: doorsSet, key: door, flags: unix.NFT_SET_MAP, data: nftables.TypeVerdict, counter: true},
		{name: allowSet, key: prefix},
		{name: denySet, key: prefix},
		{name: dropsSet, key: reason, counter: true},
		{name: loggedSet, key: door},
		{name: internalSet, key: door, flags: unix.NFT_SET_MAP, data: f.addrType},
		{name: externalSet, key: door, flags: unix.NFT_SET_MAP, data: f.addrType},
	}
	for i := range list {
		list[i].name = f.named(list[i].name)
	}
	return list
}

// doorKey is the type of a door: address, protocol and port.
func (f *family) doorKey() nftables.SetDatatype {
	return nftables.MustConcatSetType(f.addrType, nftables.TypeInetProto, nftables.TypeInetService)
}

// prefixKey is the type of a door and a prefix: its length and its address. Without the length, 10.0.0.0/9 would
// be found for a source in the other half of 10.0.0.0/8.
func (f *family) prefixKey() nftables.SetDatatype {
	return nftables.MustConcatSetType(f.addrType, nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeMark, f.addrType)
}

// sourceKey is the type of a door and a source.
func (f *family) sourceKey() nftables.SetDatatype {
	return nftables.MustConcatSetType(f.addrType, nftables.TypeInetProto, nftables.TypeInetService, f.addrType)
}
