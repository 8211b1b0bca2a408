package relay

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// tableName is the name of the package's tables. It touches no others.
const tableName = "holdfast-relay"

// Names of the sets and chains of a table.
const (
	// relaysMap maps a relayed address to the address of the former owner, and linksMap to the link that leads there.
	// The nft command could not print them as one map.
	relaysMap = "relays"
	linksMap  = "links"
	// usedSet holds a relayed address until no segment has used the relay for the idle time. It is no map, because nft
	// 1.0.6 crashes on a rule that updates a map.
	usedSet = "used"
	// speakersSet holds the MACs of all speakers.
	speakersSet      = "speakers"
	connectionsChain = "connections"
	errorsChain      = "errors"
)

// Priorities at prerouting. Conntrack is at -200, the packet filter's guard at -149, kube-proxy's DNAT at -100.
const (
	errorsPriority      = -150
	connectionsPriority = -148
)

// idleTime is the default of Config.IdleTime. Linux's own load balancer forgets an idle TCP connection after 15 minutes
// too (ip_vs_proto_tcp.c), and most clients and servers close or probe an idle connection before. RFC 5382 (REQ-5) and
// conntrack keep it for hours and days: relays would then pile up with every move. A connection that is idle for longer
// is reset when it continues, unless another connection used the relay of its address.
const idleTime = 15 * time.Minute

// Registers: the former owner's address from addressReg on, and its link in linkReg.
const (
	addressReg = nft.Reg
	linkReg    = addressReg + 8
)

// Flags of TCP (RFC 9293 section 3.1): SYN begins a connection, FIN and RST end it.
const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
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
	// offTimeToLive is the offset of the time to live in the header, one octet (RFC 791 section 3.1, RFC 8200 section
	// 3).
	offTimeToLive uint32
	// errors are ranges of ICMP types that report errors: the first and the last type.
	errors [][2]byte
}

// families returns both families, in the order of State.
func families() []*family {
	return []*family{
		// Destination unreachable, time exceeded and parameter problem (RFC 792).
		{
			Family:        nft.IPv4(),
			name:          lb.IPv4,
			offTimeToLive: 8,
			errors:        [][2]byte{{3, 3}, {11, 12}},
		},
		// The same and packet too big (RFC 4443 section 3).
		{
			Family:        nft.IPv6(),
			name:          lb.IPv6,
			offTimeToLive: 7,
			errors:        [][2]byte{{1, 4}},
		},
	}
}

// layout returns the table's layout. A relay ends when no packet has used it for the idle time.
func (f *family) layout(idle time.Duration) *nft.Layout {
	sets := []nft.Set{
		{Name: relaysMap, Key: nft.Key{f.Address}, Flags: unix.NFT_SET_MAP, Data: f.Address},
		{Name: linksMap, Key: nft.Key{f.Address}, Flags: unix.NFT_SET_MAP, Data: nft.LinkIndex},
		{Name: usedSet, Key: nft.Key{f.Address}, Flags: unix.NFT_SET_TIMEOUT, Timeout: idle},
		{Name: speakersSet, Key: nft.Key{nft.MAC}},
	}
	chains := []nft.Chain{f.newErrorsChain(), f.newConnectionsChain()}
	table := nft.Table{Family: f.Proto, Name: tableName}

	return nft.NewLayout(table, sets, chains)
}

// newErrorsChain returns the chain that relays ICMP errors about connections that this node does not know.
func (f *family) newErrorsChain() nft.Chain {
	chain := baseChain(errorsChain, errorsPriority)
	isUnknown := nft.State(expr.CmpOpEq, expr.CtStateBitRELATED|expr.CtStateBitESTABLISHED)
	for _, types := range f.errors {
		isError := slices.Concat(nft.Meta(expr.MetaKeyL4PROTO, f.ICMP), icmpTypes(types))
		chain.Rules = append(chain.Rules, slices.Concat(isError, isUnknown, f.relayRule(nil)))
	}

	return chain
}

// newConnectionsChain returns the chain that relays TCP segments of connections that this node does not know. Segments
// that continue a connection renew the relay, and segments that end it do not.
func (f *family) newConnectionsChain() nft.Chain {
	isTCP := nft.Meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP)
	continues := slices.Concat(
		isTCP,
		nft.TCPFlags(expr.CmpOpEq, tcpSYN|tcpFIN|tcpRST),
		nft.State(expr.CmpOpNeq, expr.CtStateBitNEW),
	)

	ends := slices.Concat(
		isTCP,
		nft.TCPFlags(expr.CmpOpEq, tcpSYN),
		nft.TCPFlags(expr.CmpOpNeq, tcpFIN|tcpRST),
		nft.State(expr.CmpOpNeq, expr.CtStateBitINVALID),
	)

	// renew starts the idle time of the relayed address in addressReg again.
	renew := nft.Expr(&expr.Dynset{
		SrcRegKey: addressReg,
		SetName:   usedSet,
		Operation: unix.NFT_DYNSET_OP_UPDATE,
	})

	return baseChain(
		connectionsChain,
		connectionsPriority,
		slices.Concat(continues, f.relayRule(renew)),
		slices.Concat(ends, f.relayRule(nil)),
	)
}

// baseChain returns a filter chain at prerouting.
func baseChain(name string, priority int32, rules ...nft.Rule) nft.Chain {
	return nft.Chain{
		Name:     name,
		Kind:     "filter",
		Hook:     unix.NF_INET_PRE_ROUTING,
		Priority: priority,
		Rules:    rules,
	}
}

// icmpTypes matches a range of ICMP types.
func icmpTypes(types [2]byte) nft.Rule {
	return nft.Expr(
		&expr.Payload{
			DestRegister: addressReg,
			Base:         expr.PayloadBaseTransportHeader,
			Len:          1,
		},
		&expr.Range{
			Register: addressReg,
			FromData: types[:1],
			ToData:   types[1:],
		},
	)
}

// relayRule sends a packet to the former owner of its destination, if there is one and no speaker sent the packet. The
// action is added to the rule, with the relayed address in addressReg.
//
// If a speaker's MAC is unknown, two nodes may each relay to the other. The kernel decrements the time to live of each
// copy but tests it only when it forwards, so the rule tests it.
func (f *family) relayRule(action nft.Rule) nft.Rule {
	matchRelayed := nft.Expr(
		&expr.Meta{Key: expr.MetaKeyIIFTYPE, Register: addressReg},
		&expr.Cmp{Register: addressReg, Data: binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_ETHER)},
		&expr.Payload{
			DestRegister: addressReg,
			Base:         expr.PayloadBaseLLHeader,
			Offset:       offSourceMAC,
			Len:          macSize,
		},
		&expr.Lookup{
			SourceRegister: addressReg,
			SetName:        speakersSet,
			Invert:         true,
		},
		&expr.Payload{
			DestRegister: addressReg,
			Base:         expr.PayloadBaseNetworkHeader,
			Offset:       f.offTimeToLive,
			Len:          1,
		},
		&expr.Cmp{
			Op:       expr.CmpOpGt,
			Register: addressReg,
			Data:     []byte{1},
		},
		f.Load(f.Destination, addressReg),
		&expr.Lookup{SourceRegister: addressReg, SetName: usedSet},
	)

	sendCopy := nft.Expr(
		f.Load(f.Destination, addressReg),
		&expr.Lookup{
			SourceRegister: addressReg,
			SetName:        relaysMap,
			IsDestRegSet:   true,
			DestRegister:   addressReg,
		},
		f.Load(f.Destination, linkReg),
		&expr.Lookup{
			SourceRegister: linkReg,
			SetName:        linksMap,
			IsDestRegSet:   true,
			DestRegister:   linkReg,
		},
		&expr.Dup{
			RegAddr:     addressReg,
			RegDev:      linkReg,
			IsRegDevSet: true,
		},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop},
	)

	return slices.Concat(matchRelayed, action, sendCopy)
}
