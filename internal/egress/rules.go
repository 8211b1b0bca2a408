package egress

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// steer returns the rules that mark the packets which take a way: packets of connections that pods opened to outside of
// the cluster. Answers to connections that others opened go as before, and so does what kube-proxy translated, and what
// the pod began without a right.
func (f *family) steer() []nft.Rule {
	isOther := slices.Concat(
		nft.Expr(meta(expr.MetaKeyIIF)),
		notIn(steeredSet),
	)
	keepsSource := slices.Concat(
		nft.Status(expr.CmpOpNeq, ipsConfirmed),
		f.LoadTupleDestination(directionReply, keyReg),
		notIn(addressesSet),
	)
	// In its mode IPVS kube-proxy makes the addresses of Services local, and translates later.
	isLocal := nft.Expr(
		&expr.Fib{Register: keyReg, FlagDADDR: true, ResultADDRTYPE: true},
		equals(nft.Native(unix.RTN_LOCAL)...),
	)
	rules := []nft.Rule{
		slices.Concat(isOther, accept()),
		slices.Concat(keepsSource, accept()),
		slices.Concat(isLocal, accept()),
	}
	for i, set := range waySets() {
		rules = append(rules, slices.Concat(
			f.takesWay(set),
			nft.ChangeMark(wayMask, wayMark(i+1)),
		))
	}
	return rules
}

// takesWay matches packets of connections that pods in a set opened to outside of the cluster.
func (f *family) takesWay(set string) nft.Rule {
	return slices.Concat(
		f.loadPod(),
		in(set),
		direction(directionOriginal),
		f.leavesCluster(),
	)
}

// unmark returns the rules that end the marks of ways, but no other program's with the same bits.
func (f *family) unmark() (rules []nft.Rule) {
	for i, set := range waySets() {
		rules = append(rules, slices.Concat(
			hasMark(wayMask, wayMark(i+1)),
			f.takesWay(set),
			nft.ChangeMark(wayMask, 0),
		))
	}
	return rules
}

// translate returns the rules that translate the first packet of a connection with a right. A connection to an address
// that kube-proxy translated stays in the cluster.
func (f *family) translate() []nft.Rule {
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
		slices.Concat(
			f.leavesCluster(),
			f.hasRight(),
			f.loadPod(),
			toSlice,
		),
	}
}

// forward returns the rules about packets that leave. Their route is known, so the marks of ways end. The gate checks
// the packets of translated connections by whichever link, because the entry of a former pod must not serve the next
// pod with its address. New connections of sources need a right if they leave by an uplink.
func (f *family) forward() []nft.Rule {
	isTranslated := slices.Concat(
		direction(directionOriginal),
		// Else the address is the client's own: a router sends a pod's connection back to the cluster.
		nft.Status(expr.CmpOpNeq, ipsSrcNAT),
		f.LoadTupleDestination(directionReply, keyReg),
		in(addressesSet),
	)
	isNew := slices.Concat(
		nft.State(expr.CmpOpNeq, expr.CtStateBitNEW),
		nft.Expr(f.Load(f.Source, keyReg)),
		in(sourcesSet),
		f.leavesCluster(),
	)

	return append(
		f.unmark(),
		slices.Concat(isTranslated, goTo(gateChain)),
		slices.Concat(
			nft.Expr(meta(expr.MetaKeyOIF)),
			notIn(uplinksSet),
			accept(),
		),
		slices.Concat(isNew, goTo(openChain)),
	)
}

// gate returns the rules for packets of translated connections: the pod of the address must have sent them. By another
// link than the address's none leaves: they are dropped, so that their connections go on once the route is right again.
func (f *family) gate() []nft.Rule {
	return []nft.Rule{
		slices.Concat(notFromPort(), goTo(refuseChain)),
		slices.Concat(
			f.loadPod(),
			f.loadExit(),
			in(exitsSet),
			accept(),
		),
		slices.Concat(
			f.loadPod(),
			in(podsSet),
			nft.Expr(drop()),
		),
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
		nft.Expr(meta(expr.MetaKeyL4PROTO)),
		in(protocolsSet),
		f.loadPod(),
		f.loadExit(),
		in(rightsSet),
	)
}

// loadExit loads the link by which the packet leaves, behind the key of a pod.
func (f *family) loadExit() nft.Rule {
	return nft.Expr(&expr.Meta{
		Key:      expr.MetaKeyOIF,
		Register: keyReg + 1 + f.Words(),
	})
}

// loadPod loads the key of a pod: the link and the source of the packet.
func (f *family) loadPod() nft.Rule {
	return nft.Expr(
		meta(expr.MetaKeyIIF),
		f.Load(f.Source, keyReg+1),
	)
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
		slices.Concat(
			nft.Expr(meta(expr.MetaKeyIIF)),
			notIn(uplinksSet),
			accept(),
		),
		slices.Concat(
			nft.Expr(f.Load(f.Destination, keyReg)),
			notIn(addressesSet),
			accept(),
		),
		slices.Concat(
			isProtocol(unix.IPPROTO_TCP),
			f.passRule(nft.DestinationPort),
		),
		slices.Concat(
			isProtocol(unix.IPPROTO_UDP),
			f.passRule(nft.DestinationPort),
		),
		slices.Concat(
			isProtocol(f.ICMP),
			octet(0, 0xff, f.echoReply),
			f.passRule(offIdentifier),
		),
	}

	for _, types := range f.errors {
		isError := slices.Concat(
			isProtocol(f.ICMP),
			icmpTypes(types),
			octet(offReported, f.versionMask, f.version),
		)
		reports := func(number byte) nft.Rule {
			reported := octet(offReported+f.offProtocol, 0xff, number)
			return slices.Concat(isError, reported)
		}

		reportsEcho := slices.Concat(
			reports(f.ICMP),
			octet(offPayload, 0xff, f.echoRequest),
		)

		bySourcePort := f.passRule(offPayload + nft.SourcePort)
		byIdentifier := f.passRule(offPayload + offIdentifier)
		rules = append(
			rules,
			slices.Concat(reports(unix.IPPROTO_TCP), bySourcePort),
			slices.Concat(reports(unix.IPPROTO_UDP), bySourcePort),
			slices.Concat(reportsEcho, byIdentifier),
		)
	}

	return rules
}

// icmpTypes matches a range of ICMP types.
func icmpTypes(types [2]byte) nft.Rule {
	return nft.Expr(
		transport(0, 1, keyReg),
		&expr.Range{
			Register: keyReg,
			FromData: types[:1],
			ToData:   types[1:],
		},
	)
}

// passRule sends a packet to the node of its slice, unless a speaker sent it. The port of the slice is at an offset
// behind the network header.
//
// If a speaker's MAC is unknown, two nodes may each pass a packet to the other. The kernel decrements the time to live
// of each copy but tests it only when it forwards, so the rule tests it.
func (f *family) passRule(offPort uint32) nft.Rule {
	ethernet := binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_ETHER)
	loadSender := &expr.Payload{
		DestRegister: keyReg,
		Base:         expr.PayloadBaseLLHeader,
		Offset:       offSourceMAC,
		Len:          macSize,
	}

	loadTimeToLive := &expr.Payload{
		DestRegister: keyReg,
		Base:         expr.PayloadBaseNetworkHeader,
		Offset:       f.offTimeToLive,
		Len:          1,
	}

	matchSender := slices.Concat(
		nft.Meta(expr.MetaKeyIIFTYPE, ethernet...),
		nft.Expr(loadSender),
		notIn(speakersSet),
		nft.Expr(
			loadTimeToLive,
			&expr.Cmp{
				Op:       expr.CmpOpGt,
				Register: keyReg,
				Data:     []byte{1},
			},
		),
	)

	// A slice begins at a multiple of its size, so a mask gives the first port.
	portReg := keyReg + f.Words()
	firstPort := binary.BigEndian.AppendUint16(nil, ^uint16(lb.SlicePorts-1))
	loadSlice := nft.Expr(
		f.Load(f.Destination, keyReg),
		transport(offPort, 2, portReg),
		nft.Mask(portReg, firstPort),
	)

	sendCopy := nft.Expr(
		lookUp(passesMap, addressReg),
		lookUp(linksMap, linkReg),
		&expr.Dup{
			RegAddr:     addressReg,
			RegDev:      linkReg,
			IsRegDevSet: true,
		},
		&expr.Counter{},
		drop(),
	)

	return slices.Concat(matchSender, loadSlice, sendCopy)
}

// octet matches an octet behind the network header.
func octet(offset uint32, mask, want byte) nft.Rule {
	load := transport(offset, 1, keyReg)
	if mask == 0xff {
		return nft.Expr(load, equals(want))
	}
	return nft.Expr(
		load,
		nft.Mask(keyReg, []byte{mask}),
		equals(want),
	)
}

// fromBridge matches packets from a bridge with pods.
func fromBridge() nft.Rule {
	return slices.Concat(
		nft.Expr(meta(expr.MetaKeyIIF)),
		in(bridgesSet),
	)
}

// notFromPort matches packets from a bridge with pods that did not come from the port of their source.
func notFromPort() nft.Rule {
	return slices.Concat(fromBridge(), hasMark(portMark, 0))
}

// hasMark matches packets whose mark has a value in some bits.
func hasMark(mask, value uint32) nft.Rule {
	return nft.Expr(
		meta(expr.MetaKeyMARK),
		nft.Mask(keyReg, nft.Native(mask)),
		equals(nft.Native(value)...),
	)
}

// direction matches packets in a direction of their connection.
func direction(d byte) nft.Rule {
	return nft.Expr(
		&expr.Ct{
			Key:      expr.CtKeyDIRECTION,
			Register: keyReg,
		},
		equals(d),
	)
}

// in matches if a set has the key in the registers.
func in(set string) nft.Rule {
	return nft.Expr(&expr.Lookup{
		SourceRegister: keyReg,
		SetName:        set,
	})
}

// notIn matches if a set does not have the key in the registers.
func notIn(set string) nft.Rule {
	return nft.Expr(&expr.Lookup{
		SourceRegister: keyReg,
		SetName:        set,
		Invert:         true,
	})
}

// lookUp loads what a map has for the key in the registers. It matches if the map has the key.
func lookUp(name string, into uint32) *expr.Lookup {
	return &expr.Lookup{
		SourceRegister: keyReg,
		SetName:        name,
		IsDestRegSet:   true,
		DestRegister:   into,
	}
}

// meta loads a field about the packet.
func meta(key expr.MetaKey) *expr.Meta {
	return &expr.Meta{
		Key:      key,
		Register: keyReg,
	}
}

// transport loads octets behind the network header.
func transport(offset, size, into uint32) *expr.Payload {
	return &expr.Payload{
		DestRegister: into,
		Base:         expr.PayloadBaseTransportHeader,
		Offset:       offset,
		Len:          size,
	}
}

// equals matches if the register has these octets.
func equals(data ...byte) *expr.Cmp {
	return &expr.Cmp{
		Register: keyReg,
		Data:     data,
	}
}

// goTo continues in a chain and does not return.
func goTo(chain string) nft.Rule {
	return nft.Expr(&expr.Verdict{
		Kind:  expr.VerdictGoto,
		Chain: chain,
	})
}

// accept accepts the packet: no later rule of the base chain sees it.
func accept() nft.Rule { return nft.Expr(&expr.Verdict{Kind: expr.VerdictAccept}) }

// drop drops the packet.
func drop() *expr.Verdict { return &expr.Verdict{Kind: expr.VerdictDrop} }
