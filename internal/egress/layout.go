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
	// uplinksSet holds the links that lead out of the cluster. Packets that leave by others are not touched.
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
// (0xffff0000), Cilium (0x0f00), the AWS CNI (0x80) and the filter (0x10) use other bits.
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
	ipsDstNAT         = 1 << 5
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
	return []*family{
		{
			Family: nft.IPv4(), name: lb.IPv4, etherType: unix.ETH_P_IP, offTimeToLive: 8,
			// RFC 792. Destination unreachable, time exceeded and parameter problem report errors.
			echoRequest: 8, echoReply: 0, errors: [][2]byte{{3, 3}, {11, 12}},
			headerSize: 20, offProtocol: 9, version: 0x45, versionMask: 0xff,
			prohibited: 13, // RFC 1812 section 5.2.7.1
			// This network, loopback, link-local, multicast (RFC 6890, RFC 5771) and limited broadcast.
			inside: []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32"},
		},
		{
			Family: nft.IPv6(), name: lb.IPv6, etherType: unix.ETH_P_IPV6, offTimeToLive: 7,
			// RFC 4443. Destination unreachable, packet too big, time exceeded and parameter problem report errors.
			echoRequest: 128, echoReply: 129, errors: [][2]byte{{1, 4}},
			headerSize: 40, offProtocol: 6, version: 0x60, versionMask: 0xf0,
			prohibited: 1, // RFC 4443 section 3.1
			// Unspecified, loopback, link-local and multicast (RFC 4291 section 2.4).
			inside: []string{"::/127", "fe80::/10", "ff00::/8"},
		},
	}
}

// layout returns the layout of the family's table.
func (f *family) layout() *nft.Layout {
	pod := nft.Key{nft.LinkIndex, f.Address}
	slice := nft.Key{f.Address, nft.Port}
	sets := []nft.Set{
		{Name: uplinksSet, Key: nft.Key{nft.LinkIndex}},
		{Name: bridgesSet, Key: nft.Key{nft.LinkIndex}},
		{Name: protocolsSet, Key: nft.Key{nft.Protocol}},
		{Name: insideSet, Key: nft.Key{f.Address}, Flags: unix.NFT_SET_INTERVAL},
		{Name: addressesSet, Key: nft.Key{f.Address}},
		{Name: sourcesSet, Key: nft.Key{f.Address}},
		{Name: podsSet, Key: pod},
		{Name: rightsSet, Key: nft.Key{nft.LinkIndex, f.Address, nft.LinkIndex}},
		{Name: exitsSet, Key: nft.Key{nft.LinkIndex, f.Address, nft.LinkIndex}},
		{Name: translationsMap, Key: pod, Flags: unix.NFT_SET_MAP, Data: f.Address},
		{Name: firstsMap, Key: pod, Flags: unix.NFT_SET_MAP, Data: nft.Port},
		{Name: lastsMap, Key: pod, Flags: unix.NFT_SET_MAP, Data: nft.Port},
		{Name: passesMap, Key: slice, Flags: unix.NFT_SET_MAP, Data: f.Address},
		{Name: linksMap, Key: slice, Flags: unix.NFT_SET_MAP, Data: nft.LinkIndex},
		{Name: speakersSet, Key: nft.Key{nft.MAC}},
	}
	for _, name := range waySets() {
		sets = append(sets, nft.Set{Name: name, Key: pod})
	}

	return nft.NewLayout(nft.Table{Family: f.Proto, Name: tableName}, sets, []nft.Chain{
		{Name: refuseChain, Rules: f.rejections()},
		{Name: gateChain, Rules: f.gate()},
		{Name: openChain, Rules: f.open()},
		{
			Name: passChain, Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: passPriority,
			Rules: f.pass(),
		},
		{
			Name: steerChain, Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: steerPriority,
			Rules: f.steer(),
		},
		{
			Name: forwardChain, Kind: "filter", Hook: unix.NF_INET_FORWARD, Priority: forwardPriority,
			Rules: f.forward(),
		},
		{
			Name: natChain, Kind: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: natPriority,
			Rules: f.translate(),
		},
		{
			Name: cleanChain, Kind: "filter", Hook: unix.NF_INET_POST_ROUTING, Priority: cleanPriority,
			Rules: []nft.Rule{slices.Concat(fromBridge(), nft.ChangeMark(portMark, 0))},
		},
	})
}

// steer returns the rules that mark the packets which take a way: packets of connections that pods opened to outside of
// the cluster. Answers to connections that others opened go as before, and so does what kube-proxy translated.
func (f *family) steer() []nft.Rule {
	rules := []nft.Rule{slices.Concat(f.loadPod(), notIn(podsSet), accept())}
	for i, set := range waySets() {
		rules = append(rules, slices.Concat(
			f.loadPod(),
			in(set),
			direction(directionOriginal),
			f.leavesCluster(),
			nft.ChangeMark(wayMask, wayMark(i+1)),
		))
	}
	return rules
}

// waySets returns the names of the sets of the ways, in the order of their numbers.
func waySets() []string { return []string{ways1Set, ways2Set, ways3Set} }

// translate returns the rules that translate the first packet of a connection with a right. A connection to an address
// that kube-proxy translated stays in the cluster.
func (f *family) translate() []nft.Rule {
	lookUp := func(set string, into uint32) *expr.Lookup {
		return &expr.Lookup{SourceRegister: keyReg, SetName: set, IsDestRegSet: true, DestRegister: into}
	}
	toSlice := nft.Expr(
		lookUp(translationsMap, addressReg),
		lookUp(firstsMap, firstReg),
		lookUp(lastsMap, lastReg),
		&expr.NAT{
			Type:        expr.NATTypeSourceNAT,
			Family:      uint32(f.Proto),
			RegAddrMin:  addressReg,
			RegProtoMin: firstReg,
			RegProtoMax: lastReg,
		},
	)

	return []nft.Rule{
		slices.Concat(notFromPort(), accept()),
		slices.Concat(f.leavesCluster(), f.hasRight(), f.loadPod(), toSlice),
	}
}

// forward returns the rules about packets that leave by an uplink. Their route is known, so the marks of ways end. The
// gate checks the packets of translated connections, because the entry of a former pod must not serve the next pod with
// its address. New connections of sources need a right.
func (f *family) forward() []nft.Rule {
	isTranslated := slices.Concat(
		direction(directionOriginal),
		f.LoadTupleDestination(directionReply, keyReg),
		in(addressesSet),
	)
	isNew := slices.Concat(
		nft.State(expr.CmpOpNeq, expr.CtStateBitNEW),
		nft.Expr(f.Load(f.Source, keyReg)),
		in(sourcesSet),
		f.leavesCluster(),
	)

	return []nft.Rule{
		slices.Concat(f.loadPod(), in(podsSet), nft.ChangeMark(wayMask, 0)),
		slices.Concat(nft.Expr(&expr.Meta{Key: expr.MetaKeyOIF, Register: keyReg}), notIn(uplinksSet), accept()),
		slices.Concat(isTranslated, goTo(gateChain)),
		slices.Concat(isNew, goTo(openChain)),
	}
}

// gate returns the rules for packets of translated connections: the pod of the address must have sent them. By another
// link than the address's none leaves: they are dropped, so that their connections go on once the route is right again.
func (f *family) gate() []nft.Rule {
	return []nft.Rule{
		slices.Concat(notFromPort(), goTo(refuseChain)),
		slices.Concat(f.loadPod(), f.loadExit(), in(exitsSet), accept()),
		slices.Concat(f.loadPod(), in(podsSet), nft.Expr(&expr.Verdict{Kind: expr.VerdictDrop})),
		goTo(refuseChain),
	}
}

// open returns the rules for new connections of sources.
func (f *family) open() []nft.Rule {
	return []nft.Rule{
		slices.Concat(notFromPort(), goTo(refuseChain)),
		slices.Concat(f.hasRight(), accept()),
		goTo(refuseChain),
	}
}

// rejections returns the rules that refuse a packet at once: by a TCP reset (RFC 9293 section 3.10.7.1), otherwise by
// an ICMP error.
func (f *family) rejections() []nft.Rule {
	return []nft.Rule{
		nft.Expr(&expr.Counter{}),
		slices.Concat(
			nft.Meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP),
			nft.Expr(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}),
		),
		nft.Expr(&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: f.prohibited}),
	}
}

// leavesCluster matches packets to destinations outside of the cluster that no rule has translated.
func (f *family) leavesCluster() nft.Rule {
	return slices.Concat(
		nft.Status(expr.CmpOpEq, ipsDstNAT),
		nft.Expr(f.Load(f.Destination, keyReg)),
		notIn(insideSet),
	)
}

// hasRight matches packets that came from a pod with a right and leave by the link of its address.
func (f *family) hasRight() nft.Rule {
	return slices.Concat(
		nft.Expr(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: keyReg}),
		in(protocolsSet),
		f.loadPod(),
		f.loadExit(),
		in(rightsSet),
	)
}

// loadExit loads the link by which the packet leaves, behind the key of a pod.
func (f *family) loadExit() nft.Rule {
	return nft.Expr(&expr.Meta{Key: expr.MetaKeyOIF, Register: keyReg + 1 + f.Words()})
}

// loadPod loads the key of a pod: the link and the source of the packet.
func (f *family) loadPod() nft.Rule {
	return nft.Expr(&expr.Meta{Key: expr.MetaKeyIIF, Register: keyReg}, f.Load(f.Source, keyReg+1))
}

// pass returns the rules that send answers on to the node of their slice: answers of TCP and UDP, echo replies, and
// errors about what the slice's pods sent.
func (f *family) pass() []nft.Rule {
	// Offsets in an ICMP message (RFC 792, RFC 4443 section 2.1), in bytes: of the identifier of an echo, and of the
	// packet that an error reports. The second is the source's header, and then its ports or its ICMP header.
	const (
		offIdentifier = 4
		offReported   = 8
	)
	offPayload := offReported + f.headerSize

	isProtocol := func(number byte) nft.Rule { return nft.Meta(expr.MetaKeyL4PROTO, number) }
	rules := []nft.Rule{
		slices.Concat(nft.Expr(&expr.Meta{Key: expr.MetaKeyIIF, Register: keyReg}), notIn(uplinksSet), accept()),
		slices.Concat(nft.Expr(f.Load(f.Destination, keyReg)), notIn(addressesSet), accept()),
		slices.Concat(isProtocol(unix.IPPROTO_TCP), f.passRule(nft.DestinationPort)),
		slices.Concat(isProtocol(unix.IPPROTO_UDP), f.passRule(nft.DestinationPort)),
		slices.Concat(isProtocol(f.ICMP), octet(0, 0xff, f.echoReply), f.passRule(offIdentifier)),
	}

	for _, types := range f.errors {
		isError := slices.Concat(
			isProtocol(f.ICMP),
			icmpTypes(types),
			octet(offReported, f.versionMask, f.version),
		)
		reports := func(number byte) nft.Rule {
			return slices.Concat(isError, octet(offReported+f.offProtocol, 0xff, number))
		}
		reportsEcho := slices.Concat(reports(f.ICMP), octet(offPayload, 0xff, f.echoRequest))
		rules = append(
			rules,
			slices.Concat(reports(unix.IPPROTO_TCP), f.passRule(offPayload+nft.SourcePort)),
			slices.Concat(reports(unix.IPPROTO_UDP), f.passRule(offPayload+nft.SourcePort)),
			slices.Concat(reportsEcho, f.passRule(offPayload+offIdentifier)),
		)
	}

	return rules
}

// icmpTypes matches a range of ICMP types.
func icmpTypes(types [2]byte) nft.Rule {
	return nft.Expr(
		&expr.Payload{DestRegister: keyReg, Base: expr.PayloadBaseTransportHeader, Len: 1},
		&expr.Range{Register: keyReg, FromData: types[:1], ToData: types[1:]},
	)
}

// passRule sends a packet to the node of its slice, unless a speaker sent it. The port of the slice is at an offset
// behind the network header.
//
// If a speaker's MAC is unknown, two nodes may each pass a packet to the other. The kernel decrements the time to live
// of each copy but tests it only when it forwards, so the rule tests it.
func (f *family) passRule(offPort uint32) nft.Rule {
	matchSender := nft.Expr(
		&expr.Meta{Key: expr.MetaKeyIIFTYPE, Register: keyReg},
		&expr.Cmp{Register: keyReg, Data: binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_ETHER)},
		&expr.Payload{DestRegister: keyReg, Base: expr.PayloadBaseLLHeader, Offset: offSourceMAC, Len: macSize},
		&expr.Lookup{SourceRegister: keyReg, SetName: speakersSet, Invert: true},
		&expr.Payload{DestRegister: keyReg, Base: expr.PayloadBaseNetworkHeader, Offset: f.offTimeToLive, Len: 1},
		&expr.Cmp{Op: expr.CmpOpGt, Register: keyReg, Data: []byte{1}},
	)

	// A slice begins at a multiple of its size, so a mask gives the first port.
	portReg := keyReg + f.Words()
	loadSlice := nft.Expr(
		f.Load(f.Destination, keyReg),
		&expr.Payload{DestRegister: portReg, Base: expr.PayloadBaseTransportHeader, Offset: offPort, Len: 2},
		nft.Mask(portReg, binary.BigEndian.AppendUint16(nil, ^uint16(lb.SlicePorts-1))),
	)

	sendCopy := nft.Expr(
		&expr.Lookup{SourceRegister: keyReg, SetName: passesMap, IsDestRegSet: true, DestRegister: addressReg},
		&expr.Lookup{SourceRegister: keyReg, SetName: linksMap, IsDestRegSet: true, DestRegister: linkReg},
		&expr.Dup{RegAddr: addressReg, RegDev: linkReg, IsRegDevSet: true},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop},
	)

	return slices.Concat(matchSender, loadSlice, sendCopy)
}

// octet matches an octet behind the network header.
func octet(offset uint32, mask, want byte) nft.Rule {
	load := &expr.Payload{DestRegister: keyReg, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 1}
	compare := &expr.Cmp{Register: keyReg, Data: []byte{want}}
	if mask == 0xff {
		return nft.Expr(load, compare)
	}
	return nft.Expr(load, nft.Mask(keyReg, []byte{mask}), compare)
}

// fromBridge matches packets from a bridge with pods.
func fromBridge() nft.Rule {
	return slices.Concat(nft.Expr(&expr.Meta{Key: expr.MetaKeyIIF, Register: keyReg}), in(bridgesSet))
}

// notFromPort matches packets from a bridge with pods that did not come from the port of their source.
func notFromPort() nft.Rule {
	return slices.Concat(fromBridge(), nft.Expr(
		&expr.Meta{Key: expr.MetaKeyMARK, Register: keyReg},
		nft.Mask(keyReg, nft.Native(portMark)),
		&expr.Cmp{Register: keyReg, Data: nft.Native(0)},
	))
}

// direction matches packets in a direction of their connection.
func direction(d byte) nft.Rule {
	return nft.Expr(
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: keyReg},
		&expr.Cmp{Register: keyReg, Data: []byte{d}},
	)
}

// in matches if a set has the key in the registers.
func in(set string) nft.Rule { return nft.Expr(&expr.Lookup{SourceRegister: keyReg, SetName: set}) }

// notIn matches if a set does not have the key in the registers.
func notIn(set string) nft.Rule {
	return nft.Expr(&expr.Lookup{SourceRegister: keyReg, SetName: set, Invert: true})
}

// goTo continues in a chain and does not return.
func goTo(chain string) nft.Rule {
	return nft.Expr(&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain})
}

// accept accepts the packet: no later rule of the base chain sees it.
func accept() nft.Rule { return nft.Expr(&expr.Verdict{Kind: expr.VerdictAccept}) }

// portsSet holds the port of a bridge and the address of the pod behind it, with the family's suffix.
const portsSet = "ports"

// markChain marks the packets that came from a pod's own port.
const markChain = "mark-ports"

// bridgeLayout returns the layout of the bridges' table. For IP a bridge is one link, so only this table can tell its
// ports apart.
func bridgeLayout() *nft.Layout {
	mark := nft.Chain{Name: markChain, Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: markPriority}
	var sets []nft.Set
	for _, f := range families() {
		name := portsSet + f.Suffix
		sets = append(sets, nft.Set{Name: name, Key: nft.Key{nft.LinkIndex, f.Address}})
		isFamily := nft.Meta(expr.MetaKeyPROTOCOL, binary.BigEndian.AppendUint16(nil, f.etherType)...)
		mark.Rules = append(mark.Rules, slices.Concat(isFamily, f.loadPod(), in(name), nft.ChangeMark(0, portMark)))
	}

	table := nft.Table{Family: unix.NFPROTO_BRIDGE, Name: tableName}
	return nft.NewLayout(table, sets, []nft.Chain{mark})
}
