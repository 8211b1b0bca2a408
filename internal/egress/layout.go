package egress

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// tableName is the name of the package's tables. It touches no others.
const tableName = "holdfast-egress"

// Names of the sets of a table.
const (
	// uplinksSet holds the links that lead out of the cluster. New connections that leave by others are not touched.
	uplinksSet = "uplinks"
	// bridgesSet holds the bridges whose ports lead to pods in sourcesSet. Packets from them need portMark.
	bridgesSet = "bridges"
	// protocolsSet holds the protocols that can be translated.
	protocolsSet = "protocols"
	// insideSet holds the destinations that are not outside of the cluster.
	insideSet = "inside"
	// addressesSet holds all egress addresses.
	addressesSet = "addresses"
	// sourcesSet holds the addresses of the pods that may not open connections without a right.
	sourcesSet = "sources"
	// podsSet holds link and address of the pods in sourcesSet, and rightsSet also the link by which packets leave.
	podsSet   = "pods"
	rightsSet = "rights"
	// exitsSet holds the same for pods whose older connections leave by a link.
	exitsSet = "exits"
	// ways1Set and the next sets hold link and address of the pods whose packets take the first way and the next ones.
	ways1Set = "ways1"
	ways2Set = "ways2"
	ways3Set = "ways3"
	// steeredSet holds the links of these pods. On most nodes it is empty, and its lookup is the cheapest.
	steeredSet = "steered"
	// translationsMap, firstsMap and lastsMap map link and address of a pod to the egress address, and to the first and
	// the last port of the slice. The nft command could not print them as one map.
	translationsMap = "translations"
	firstsMap       = "firsts"
	lastsMap        = "lasts"
	// passesMap maps address and first port of a slice to the address of its node, and linksMap to the link that leads
	// there.
	passesMap = "passes"
	linksMap  = "links"
	// speakersSet holds the MACs of all speakers.
	speakersSet = "speakers"
)

// Names of the chains of a table.
const (
	passChain    = "pass"
	steerChain   = "steer"
	openChain    = "open"
	gateChain    = "gate"
	refuseChain  = "refuse"
	forwardChain = "forward"
	natChain     = "translate"
	cleanChain   = "clean"
)

// Priorities of the base chains. Conntrack is at -200, and defragmentation, which gives every fragment's packet its
// ports, at -400.
const (
	// passPriority is before conntrack: an answer that is passed on has no entry here.
	passPriority = -299
	// steerPriority is between the destination NAT of other programs (-100) and the choice of the route.
	steerPriority = -90
	// forwardPriority is before the filters of other programs, which may drop without an answer.
	forwardPriority = -10
	// natPriority is before the source NAT of other programs (100), and of IPVS (98, 99). The first rule that
	// translates a connection decides.
	natPriority = 90
	// cleanPriority is after all source NAT.
	cleanPriority = 110
	// markPriority is before br_netfilter (0).
	markPriority = -300
)

// portMark marks a packet that came from a pod's own port of a bridge. kube-proxy (0x4000, 0x8000), Calico
// (0xffff0000), Cilium (0x0f00), the AWS CNI (0x80), the portmap plugin (0x2000) and the filter (0x10) use other bits.
const portMark = 0x20

// Registers: a key from keyReg on, and values behind the longest key.
const (
	keyReg     = nft.Reg
	addressReg = nft.Reg + 8
	firstReg   = nft.Reg + 12
	lastReg    = nft.Reg + 13
	linkReg    = nft.Reg + 12
)

// Constants of linux/netfilter/nf_conntrack_common.h.
const (
	directionOriginal = 0
	directionReply    = 1
	// ipsConfirmed says that the connection's first packet has left.
	ipsConfirmed = 1 << 3
	ipsDstNAT    = 1 << 5
)

// Offset and size of the source in an Ethernet frame, in bytes.
const (
	offSourceMAC = 6
	macSize      = 6
)

// family holds the differences between IPv4 and IPv6 in a table.
type family struct {
	nft.Family
	name lb.Family
	// etherType is the family's EtherType.
	etherType uint16
	// offTimeToLive is the offset of the time to live in the header, one octet (RFC 791 section 3.1, RFC 8200 section
	// 3).
	offTimeToLive uint32
	// echoReply and echoRequest are ICMP types.
	echoRequest, echoReply byte
	// errors are ranges of ICMP types that report errors: the first and the last type.
	errors [][2]byte
	// headerSize is the size of a header without options, in bytes, and offProtocol the offset of the protocol in it.
	headerSize, offProtocol uint32
	// version is the first octet of a header without options, and versionMask the bits of it that count.
	version, versionMask byte
	// prohibited is the ICMP code for "administratively prohibited".
	prohibited byte
	// inside are the prefixes that are never outside of the cluster.
	inside []string
}

// families returns both families, in the order of State.
func families() []*family {
	return []*family{ipv4(), ipv6()}
}

func ipv4() *family {
	return &family{
		Family:        nft.IPv4(),
		name:          lb.IPv4,
		etherType:     unix.ETH_P_IP,
		offTimeToLive: 8,
		// RFC 792. Destination unreachable, time exceeded and parameter problem report errors.
		echoRequest: 8,
		echoReply:   0,
		errors:      [][2]byte{{3, 3}, {11, 12}},
		headerSize:  20,
		offProtocol: 9,
		version:     0x45,
		versionMask: 0xff,
		prohibited:  13, // RFC 1812 section 5.2.7.1
		// This network, loopback, link-local, multicast (RFC 6890, RFC 5771) and limited broadcast.
		inside: []string{
			"0.0.0.0/8",
			"127.0.0.0/8",
			"169.254.0.0/16",
			"224.0.0.0/4",
			"255.255.255.255/32",
		},
	}
}

func ipv6() *family {
	return &family{
		Family:        nft.IPv6(),
		name:          lb.IPv6,
		etherType:     unix.ETH_P_IPV6,
		offTimeToLive: 7,
		// RFC 4443. Destination unreachable, packet too big, time exceeded and parameter problem report errors.
		echoRequest: 128,
		echoReply:   129,
		errors:      [][2]byte{{1, 4}},
		headerSize:  40,
		offProtocol: 6,
		version:     0x60,
		versionMask: 0xf0,
		prohibited:  1, // RFC 4443 section 3.1
		// Unspecified, loopback, link-local and multicast (RFC 4291 section 2.4).
		inside: []string{"::/127", "fe80::/10", "ff00::/8"},
	}
}

// layout returns the layout of the family's table.
func (f *family) layout() *nft.Layout {
	table := nft.Table{Family: f.Proto, Name: tableName}
	return nft.NewLayout(table, f.sets(), f.chains())
}

// sets returns the sets and maps of the family's table.
func (f *family) sets() []nft.Set {
	link := nft.Key{nft.LinkIndex}
	address := nft.Key{f.Address}
	pod := nft.Key{nft.LinkIndex, f.Address}
	podAndLink := nft.Key{nft.LinkIndex, f.Address, nft.LinkIndex}
	slice := nft.Key{f.Address, nft.Port}

	sets := []nft.Set{
		{Name: uplinksSet, Key: link},
		{Name: bridgesSet, Key: link},
		{Name: protocolsSet, Key: nft.Key{nft.Protocol}},
		{Name: insideSet, Key: address, Flags: unix.NFT_SET_INTERVAL},
		{Name: addressesSet, Key: address},
		{Name: sourcesSet, Key: address},
		{Name: podsSet, Key: pod},
		{Name: rightsSet, Key: podAndLink},
		{Name: exitsSet, Key: podAndLink},
		mapping(translationsMap, pod, f.Address),
		mapping(firstsMap, pod, nft.Port),
		mapping(lastsMap, pod, nft.Port),
		mapping(passesMap, slice, f.Address),
		mapping(linksMap, slice, nft.LinkIndex),
		{Name: speakersSet, Key: nft.Key{nft.MAC}},
		{Name: steeredSet, Key: link},
	}
	for _, name := range waySets() {
		sets = append(sets, nft.Set{Name: name, Key: pod})
	}
	return sets
}

// mapping returns a map from keys to data.
func mapping(name string, key nft.Key, data nft.Type) nft.Set {
	return nft.Set{
		Name:  name,
		Key:   key,
		Flags: unix.NFT_SET_MAP,
		Data:  data,
	}
}

// waySets returns the names of the sets of the ways, in the order of their numbers.
func waySets() []string { return []string{ways1Set, ways2Set, ways3Set} }

// chains returns the chains of the family's table.
func (f *family) chains() []nft.Chain {
	return []nft.Chain{
		{Name: refuseChain, Rules: f.rejections()},
		{Name: gateChain, Rules: f.gate()},
		{Name: openChain, Rules: f.open()},
		{
			Name:     passChain,
			Kind:     "filter",
			Hook:     unix.NF_INET_PRE_ROUTING,
			Priority: passPriority,
			Rules:    f.pass(),
		},
		{
			Name:     steerChain,
			Kind:     "filter",
			Hook:     unix.NF_INET_PRE_ROUTING,
			Priority: steerPriority,
			Rules:    f.steer(),
		},
		{
			Name:     forwardChain,
			Kind:     "filter",
			Hook:     unix.NF_INET_FORWARD,
			Priority: forwardPriority,
			Rules:    f.forward(),
		},
		{
			Name:     natChain,
			Kind:     "nat",
			Hook:     unix.NF_INET_POST_ROUTING,
			Priority: natPriority,
			Rules:    f.translate(),
		},
		{
			Name:     cleanChain,
			Kind:     "filter",
			Hook:     unix.NF_INET_POST_ROUTING,
			Priority: cleanPriority,
			Rules:    []nft.Rule{slices.Concat(fromBridge(), nft.ChangeMark(portMark, 0))},
		},
	}
}

// portsSet holds the port of a bridge and the address of the pod behind it, with the family's suffix.
const portsSet = "ports"

// markChain marks the packets that came from a pod's own port.
const markChain = "mark-ports"

// bridgeLayout returns the layout of the bridges' table. For IP a bridge is one link, so only this table can tell its
// ports apart.
func bridgeLayout() *nft.Layout {
	mark := nft.Chain{
		Name:     markChain,
		Kind:     "filter",
		Hook:     unix.NF_INET_PRE_ROUTING,
		Priority: markPriority,
	}
	var sets []nft.Set
	for _, f := range families() {
		name := portsSet + f.Suffix
		key := nft.Key{nft.LinkIndex, f.Address}
		sets = append(sets, nft.Set{Name: name, Key: key})

		etherType := binary.BigEndian.AppendUint16(nil, f.etherType)
		mark.Rules = append(mark.Rules, slices.Concat(
			nft.Meta(expr.MetaKeyPROTOCOL, etherType...),
			f.loadPod(),
			in(name),
			nft.ChangeMark(0, portMark),
		))
	}

	table := nft.Table{Family: unix.NFPROTO_BRIDGE, Name: tableName}
	return nft.NewLayout(table, sets, []nft.Chain{mark})
}
