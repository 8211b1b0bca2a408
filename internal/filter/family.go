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
	// host is the prefix length of one source of a rate limit: an IPv6 host can use all addresses of a /64.
	host int
}

// families returns both families, in the order of their rules.
func families() [2]*family {
	return [2]*family{
		{Family: nft.IPv4(), echo: 8, host: 32},
		{Family: nft.IPv6(), echo: 128, host: 64},
	}
}

// familyOf returns the family of IPv6 or of IPv4.
func familyOf(ipv6 bool) *family {
	if ipv6 {
		return families()[1]
	}
	return families()[0]
}

// Names of the sets of each family. named adds the family's suffix.
const (
	// guardedSet holds the addresses at which all ports without a frontend are closed.
	guardedSet = "guarded"
	// resetSet holds the addresses whose closed ports reject connections. At other addresses packets are dropped.
	resetSet = "reset"
	// openSet holds the addresses whose closed ports the filter does not close.
	openSet = "open"
	// pingsSet holds the addresses that answer echo requests.
	pingsSet = "pings"
	// pingersSet holds the rate of echo requests of each recent source.
	pingersSet = "pingers"
	// relayedSet holds the addresses whose older connections another node serves.
	relayedSet = "relayed"
	// addressesSet holds the addresses of frontends.
	addressesSet = "addresses"
	// frontendsSet maps a frontend to its verdict and counts its packets.
	frontendsSet = "frontends"
	// allowSet and denySet map a frontend to the number of a list. For odd parity the names end in oddSuffix.
	allowSet = "allow"
	denySet  = "deny"
	// sourcesSet holds the prefixes of the lists.
	sourcesSet = "sources"
	// dropsSet counts the packets that a frontend refuses, by reason. A key of zeros and the reason counts packets to
	// no frontend.
	dropsSet = "drops"
	// loggedSet holds the frontends whose drops are logged.
	loggedSet = "logged"
	// internalSet maps a frontend to its ClusterIP.
	internalSet = "internal"
	// externalSet maps a port of a ClusterIP to the address of the frontend.
	externalSet = "external"
)

// insideSet holds the names of the links of this node's pods, and the empty name: packets of the node itself have no
// incoming link.
const insideSet = "inside"

// sourceMemory limits the number of sources that a set holds at once, and memoryTimeout the time for which it holds
// one.
const (
	sourceMemory  = 65535
	memoryTimeout = 10 * time.Second
)

// named returns the name of a set or chain of the family.
func (f *family) named(base string) string {
	return base + f.Suffix
}

// sets returns the permanent sets of the family.
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
		// The key has the prefix length: without it, a lookup for 10.0.0.0/8 would find 10.0.0.0/9.
		{Name: sourcesSet, Key: nft.Key{f.Address, nft.Mark, nft.Mark}},
		{Name: dropsSet, Key: append(f.PortType(), nft.Mark), Counter: true},
		{Name: loggedSet, Key: frontend},
		{Name: internalSet, Key: frontend, Flags: unix.NFT_SET_MAP, Data: f.Address},
		{Name: externalSet, Key: frontend, Flags: unix.NFT_SET_MAP, Data: f.Address},
	}

	for _, name := range []string{allowSet, denySet} {
		for _, parity := range []string{"", oddSuffix} {
			list = append(list, nft.Set{
				Name:  name + parity,
				Key:   frontend,
				Flags: unix.NFT_SET_MAP,
				Data:  nft.Mark,
			})
		}
	}

	for i := range list {
		list[i].Name = f.named(list[i].Name)
	}

	return list
}
