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

// tableName is the name of our tables. No others are touched.
const tableName = "holdfast-relay"

// What a table holds.
const (
	// relaysMap has the address of the former owner, and linksMap the link that leads there. In one map, the nft
	// command could not show them. usedSet has the address until the relay was unused for the idle time. It is not a
	// map either: nft 1.0.6 crashes on a rule that updates one.
	relaysMap        = "relays"
	linksMap         = "links"
	usedSet          = "used"
	speakersSet      = "speakers"
	connectionsChain = "connections"
	errorsChain      = "errors"
)

// Priorities at prerouting. Conntrack is at -200, the packet filter's guard at -149, kube-proxy's DNAT at -100.
const (
	errorsPriority      = -150
	connectionsPriority = -148
)

// idleTime is how long a relay lasts without a segment. Linux's own load balancer forgets an idle TCP connection after
// 15 minutes too (ip_vs_proto_tcp.c), and most clients and servers close or probe an idle one before. RFC 5382 (REQ-5)
// and conntrack keep one for hours and days: then relays would pile up with every move. A connection that sleeps for
// longer while no other one of its address is used is reset when it wakes.
const idleTime = 15 * time.Minute

// Registers: the former owner's address from first on, its link in spare.
const (
	first = nft.Reg
	spare = first + 8
)

// Flags of TCP (RFC 9293 section 3.1): a SYN begins a connection, FIN and RST end one.
const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
)

// Where an Ethernet frame has its source.
const (
	sourceMACAt = 6
	macSize     = 6
)

// family is what differs between IPv4 and IPv6.
type family struct {
	nft.Family
	name lb.Family
	// timeToLive is where that lies in the header, an octet (RFC 791 section 3.1, RFC 8200 section 3).
	timeToLive uint32
	// errors are the types of ICMP errors, from and to.
	errors [][2]byte
}

// families in the order of all reports.
func families() []*family {
	return []*family{
		// Destination unreachable, time exceeded and parameter problem (RFC 792).
		{Family: nft.IPv4(), name: lb.IPv4, timeToLive: 8, errors: [][2]byte{{3, 3}, {11, 12}}},
		// The same and packet too big (RFC 4443 section 3).
		{Family: nft.IPv6(), name: lb.IPv6, timeToLive: 7, errors: [][2]byte{{1, 4}}},
	}
}

// layout makes the table, whose relays end after idle.
func (f *family) layout(idle time.Duration) *nft.Layout {
	sets := []nft.Set{
		{Name: relaysMap, Key: nft.Key{f.Address}, Flags: unix.NFT_SET_MAP, Data: f.Address},
		{Name: linksMap, Key: nft.Key{f.Address}, Flags: unix.NFT_SET_MAP, Data: nft.LinkIndex},
		{Name: usedSet, Key: nft.Key{f.Address}, Flags: unix.NFT_SET_TIMEOUT, Timeout: idle},
		{Name: speakersSet, Key: nft.Key{nft.MAC}},
	}

	errors := chain(errorsChain, errorsPriority)
	for _, types := range f.errors {
		errors.Rules = append(errors.Rules, slices.Concat(nft.Meta(expr.MetaKeyL4PROTO, f.ICMP), icmpTypes(types),
			nft.State(expr.CmpOpEq, expr.CtStateBitRELATED|expr.CtStateBitESTABLISHED), f.relayRule(nil)))
	}

	segment := nft.Meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP)
	goesOn, ends := nft.TCPFlags(
		expr.CmpOpEq,
		tcpSYN|tcpFIN|tcpRST,
	), slices.Concat(
		nft.TCPFlags(expr.CmpOpEq, tcpSYN),
		nft.TCPFlags(expr.CmpOpNeq, tcpFIN|tcpRST),
	)

	// Begins the idle time of the relay again, to which the address in first belongs.
	use := nft.Expr(&expr.Dynset{SrcRegKey: first, SetName: usedSet, Operation: unix.NFT_DYNSET_OP_UPDATE})
	connections := chain(connectionsChain, connectionsPriority,
		slices.Concat(segment, goesOn, nft.State(expr.CmpOpNeq, expr.CtStateBitNEW), f.relayRule(use)),
		slices.Concat(segment, ends, nft.State(expr.CmpOpNeq, expr.CtStateBitINVALID), f.relayRule(nil)))

	return nft.NewLayout(nft.Table{Family: f.Proto, Name: tableName}, sets, []nft.Chain{errors, connections})
}

func chain(name string, priority int32, rules ...nft.Rule) nft.Chain {
	return nft.Chain{Name: name, Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: priority, Rules: rules}
}

func icmpTypes(types [2]byte) nft.Rule {
	return nft.Expr(
		&expr.Payload{DestRegister: first, Base: expr.PayloadBaseTransportHeader, Len: 1},
		&expr.Range{Register: first, FromData: types[:1], ToData: types[1:]},
	)
}

// relayRule gives a packet to the former owner of its destination, if there is one and no speaker sent it. Should a
// speaker's MAC not be known, two nodes may take each other for the former owner: the kernel takes one from the time to
// live of the copy, but looks at it only when it forwards, so it is looked at here. What is to be done with the relay's
// address in first is added to the rule.
func (f *family) relayRule(with nft.Rule) nft.Rule {
	return slices.Concat(nft.Expr(
		&expr.Meta{Key: expr.MetaKeyIIFTYPE, Register: first},
		&expr.Cmp{Register: first, Data: binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_ETHER)},
		&expr.Payload{DestRegister: first, Base: expr.PayloadBaseLLHeader, Offset: sourceMACAt, Len: macSize},
		&expr.Lookup{SourceRegister: first, SetName: speakersSet, Invert: true},
		&expr.Payload{DestRegister: first, Base: expr.PayloadBaseNetworkHeader, Offset: f.timeToLive, Len: 1},
		&expr.Cmp{Op: expr.CmpOpGt, Register: first, Data: []byte{1}},
		f.Load(f.Destination, first), &expr.Lookup{SourceRegister: first, SetName: usedSet},
	), with, nft.Expr(
		f.Load(f.Destination, first),
		&expr.Lookup{SourceRegister: first, SetName: relaysMap, IsDestRegSet: true, DestRegister: first},
		f.Load(f.Destination, spare),
		&expr.Lookup{SourceRegister: spare, SetName: linksMap, IsDestRegSet: true, DestRegister: spare},
		&expr.Dup{RegAddr: first, RegDev: spare, IsRegDevSet: true},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop},
	))
}
