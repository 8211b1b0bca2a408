package filter

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// family holds the differences between IPv4 and IPv6 in the table.
type family struct {
	nft.Family
	// echo is the ICMP type of an echo request (RFC 792, RFC 4443 section 4.1).
	echo byte
	// host is how many leading bits of a source are one source to a rate limit: an IPv6 host has all of a
	// /64 at its disposal.
	host int
}

// families in the order of their rules.
func families() [2]*family {
	return [2]*family{
		{Family: nft.IPv4(), echo: 8, host: 32},
		{Family: nft.IPv6(), echo: 128, host: 64},
	}
}

// familyOf returns one of the families.
func familyOf(ipv6 bool) *family {
	if ipv6 {
		return families()[1]
	}
	return families()[0]
}

// The sets of each family; the family's suffix is added to each name.
const (
	// guardedSet holds the addresses that are closed but for their frontends.
	guardedSet = "guarded"
	// resetSet holds the addresses whose closed ports refuse connections with an answer.
	resetSet = "reset"
	// openSet holds the addresses whose closed ports the filter leaves alone.
	openSet = "open"
	// pingsSet holds the addresses that answer echo requests, pingersSet the rate of requests of each recent source.
	pingsSet   = "pings"
	pingersSet = "pingers"
	// relayedSet holds the addresses whose older connections another node serves.
	relayedSet = "relayed"
	// addressesSet holds the addresses of frontends.
	addressesSet = "addresses"
	// frontendsSet maps a frontend to its verdict and counts its packets.
	frontendsSet = "frontends"
	// allowSet and denySet map a frontend to the number of a list, those that end in oddSuffix for lists of odd parity.
	// sourcesSet holds the prefixes of the lists.
	allowSet   = "allow"
	denySet    = "deny"
	sourcesSet = "sources"
	// dropsSet counts the packets that a frontend refuses, by reason; a key of zeros with the reason counts packets to
	// no frontend.
	dropsSet = "drops"
	// loggedSet holds the frontends whose drops are logged.
	loggedSet = "logged"
	// internalSet maps a frontend to its ClusterIP, externalSet a port of the ClusterIP to the address of the frontend.
	internalSet = "internal"
	externalSet = "external"
)

// insideSet holds the names of the links of this node's pods, and the empty name: packets of the node itself come by
// no link.
const insideSet = "inside"

// sourceMemory bounds how many sources are remembered at once, and memoryTimeout for how long.
const (
	sourceMemory  = 65535
	memoryTimeout = 10 * time.Second
)

// named returns the name of a set or chain of the family.
func (f *family) named(base string) string { return base + f.Suffix }

// sets returns the sets of the family that are always there.
func (f *family) sets() []nft.Set {
	frontend := f.PortType()
	list := []nft.Set{
		{Name: guardedSet, Key: nft.Key{f.Address}, Flags: unix.NFT_SET_INTERVAL},
		{Name: resetSet, Key: nft.Key{f.Address}, Flags: unix.NFT_SET_INTERVAL},
		{Name: openSet, Key: nft.Key{f.Address}, Flags: unix.NFT_SET_INTERVAL},
		{Name: addressesSet, Key: nft.Key{f.Address}},
		{Name: relayedSet, Key: nft.Key{f.Address}},
		{Name: pingsSet, Key: nft.Key{f.Address}},
		{
			Name:    pingersSet,
			Key:     nft.Key{f.Address},
			Flags:   unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT,
			Size:    sourceMemory,
			Timeout: memoryTimeout,
		},
		{Name: frontendsSet, Key: frontend, Flags: unix.NFT_SET_MAP, Data: nft.Verdict, Counter: true},
		// Without the length, 10.0.0.0/9 would be found for a source in the other half of 10.0.0.0/8.
		{Name: sourcesSet, Key: nft.Key{f.Address, nft.Mark, nft.Mark}},
		{Name: dropsSet, Key: append(f.PortType(), nft.Mark), Counter: true},
		{Name: loggedSet, Key: frontend},
		{Name: internalSet, Key: frontend, Flags: unix.NFT_SET_MAP, Data: f.Address},
		{Name: externalSet, Key: frontend, Flags: unix.NFT_SET_MAP, Data: f.Address},
	}

	for _, name := range []string{allowSet, denySet} {
		for _, parity := range []string{"", oddSuffix} {
			list = append(list, nft.Set{Name: name + parity, Key: frontend, Flags: unix.NFT_SET_MAP, Data: nft.Mark})
		}
	}

	for i := range list {
		list[i].Name = f.named(list[i].Name)
	}

	return list
}
