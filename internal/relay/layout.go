package relay

import (
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// tableName is the name of our tables. No others are touched.
const tableName = "holdfast-relay"

// What a table holds.
const (
	// relaysMap has the address of the former owner, and linksMap the link that leads there. In one map,
	// the nft command could not show them.
	relaysMap        = "relays"
	linksMap         = "links"
	speakersSet      = "speakers"
	connectionsChain = "connections"
	errorsChain      = "errors"
)

// Priorities at prerouting. Conntrack is at -200, the packet filter's guard at -149, kube-proxy's DNAT at -100.
const (
	errorsPriority      = -150
	connectionsPriority = -148
)

// relayTimeout is how long the kernel keeps a relay that nobody renews: longer than any outage of a
// speaker that somebody looks after, and short enough for what is left of one that never returns.
const relayTimeout = time.Hour

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
	// timeToLive is where that lies in the header, an octet (RFC 791 section 3.1, RFC 8200 section 3).
	timeToLive uint32
	// errors are the types of ICMP errors, from and to.
	errors [][2]byte
}

// families in the order of all reports.
func families() []*family {
	return []*family{
		// Destination unreachable, time exceeded and parameter problem (RFC 792).
		{Family: nft.IPv4(), timeToLive: 8, errors: [][2]byte{{3, 3}, {11, 12}}},
		// The same and packet too big (RFC 4443 section 3).
		{Family: nft.IPv6(), timeToLive: 7, errors: [][2]byte{{1, 4}}},
	}
}

// layout makes the table; with strict, conntrack takes up no connection in its middle: see strict.
func (f *family) layout(strict bool) *nft.Layout {
	sets := []nft.Set{
		{Name: relaysMap, Key: nft.Key{f.Address}, Flags: unix.NFT_SET_MAP | unix.NFT_SET_TIMEOUT, Data: f.Address, Timeout: relayTimeout},
		{Name: linksMap, Key: nft.Key{f.Address}, Flags: unix.NFT_SET_MAP | unix.NFT_SET_TIMEOUT, Data: nft.LinkIndex, Timeout: relayTimeout},
		{Name: speakersSet, Key: nft.Key{nft.MAC}},
	}
	errors := chain(errorsChain, errorsPriority)
	for _, types := range f.errors {
		errors.Rules = append(errors.Rules, slices.Concat(nft.Meta(expr.MetaKeyL4PROTO, f.ICMP), icmpTypes(types),
			nft.State(expr.CmpOpEq, expr.CtStateBitRELATED|expr.CtStateBitESTABLISHED), f.relayRule()))
	}
	segment := slices.Concat(nft.Meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP), nft.TCPFlags(expr.CmpOpEq, tcpSYN))
	ends := nft.TCPFlags(expr.CmpOpNeq, tcpFIN|tcpRST)
	if strict {
		ends = nil
	}
	connections := chain(connectionsChain, connectionsPriority,
		slices.Concat(segment, nft.State(expr.CmpOpNeq, expr.CtStateBitNEW), f.relayRule()),
		slices.Concat(segment, ends, nft.State(expr.CmpOpNeq, expr.CtStateBitINVALID), f.relayRule()))
	return nft.NewLayout(nft.Table{Family: f.Proto, Name: tableName}, sets, []nft.Chain{errors, connections})
}

func chain(name string, priority int32, rules ...nft.Rule) nft.Chain {
	return nft.Chain{Name: name, Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: priority, Rules: rules}
}

// strict reports whether conntrack calls every segment of a connection that it does not know invalid. By default
// it takes the connection up as a new one, unless the segment ends it (nf_conntrack-sysctl, nf_conntrack_tcp_loose).
func strict() bool {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_loose")
	return err == nil && strings.TrimSpace(string(text)) == "0" // it is not there until somebody uses conntrack
}

func icmpTypes(types [2]byte) nft.Rule {
	return nft.Expr(
		&expr.Payload{DestRegister: first, Base: expr.PayloadBaseTransportHeader, Len: 1},
		&expr.Range{Register: first, FromData: types[:1], ToData: types[1:]},
	)
}

// relayRule gives a packet to the former owner of its destination, if there is one and no speaker sent it. Should a
// speaker's MAC not be known, two nodes may take each other for the former owner: the kernel
// takes one from the time to live of the copy, but looks at it only when it forwards, so it is looked at here.
func (f *family) relayRule() nft.Rule {
	return nft.Expr(
		&expr.Meta{Key: expr.MetaKeyIIFTYPE, Register: first},
		&expr.Cmp{Register: first, Data: binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_ETHER)},
		&expr.Payload{DestRegister: first, Base: expr.PayloadBaseLLHeader, Offset: sourceMACAt, Len: macSize},
		&expr.Lookup{SourceRegister: first, SetName: speakersSet, Invert: true},
		&expr.Payload{DestRegister: first, Base: expr.PayloadBaseNetworkHeader, Offset: f.timeToLive, Len: 1},
		&expr.Cmp{Op: expr.CmpOpGt, Register: first, Data: []byte{1}},
		f.Load(f.Destination, first), &expr.Lookup{SourceRegister: first, SetName: relaysMap, IsDestRegSet: true, DestRegister: first},
		f.Load(f.Destination, spare), &expr.Lookup{SourceRegister: spare, SetName: linksMap, IsDestRegSet: true, DestRegister: spare},
		&expr.Dup{RegAddr: first, RegDev: spare, IsRegDevSet: true},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop},
	)
}
