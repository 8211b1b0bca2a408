package relay

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
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

// linger is how long the kernel keeps a relay that nobody renews: longer than any outage of a
// speaker that somebody looks after, and short enough for what is left of one that never returns.
const linger = time.Hour

// Registers: the former owner's address from first on, its link in spare.
const (
	first = unix.NFT_REG32_00
	spare = first + 8
)

// Flags of TCP, in the octet flagsAt (RFC 9293 section 3.1): a SYN begins a connection, FIN and RST end one.
const (
	flagsAt = 13
	tcpFIN  = 0x01
	tcpSYN  = 0x02
	tcpRST  = 0x04
)

// Where an Ethernet frame has its source.
const (
	sourceMACAt = 6
	macSize     = 6
)

// layout is one table without its members.
type layout struct {
	*family
	table                   *nftables.Table
	relays, links, speakers *nftables.Set
	chains                  []chain
	// signature is the comment of every rule: two processes agree on it if they would make the same table.
	signature []byte
}

type chain struct {
	*nftables.Chain
	rules [][]expr.Any
}

// layout makes the table; with strict, conntrack takes up no connection in its middle: see strict.
func (f *family) layout(strict bool) *layout {
	l := &layout{family: f, table: &nftables.Table{Name: tableName, Family: f.table}}
	l.relays = &nftables.Set{Table: l.table, Name: relaysMap, IsMap: true, HasTimeout: true, KeyType: f.addrType, DataType: f.addrType}
	l.links = &nftables.Set{Table: l.table, Name: linksMap, IsMap: true, HasTimeout: true, KeyType: f.addrType, DataType: nftables.TypeIFIndex}
	l.speakers = &nftables.Set{Table: l.table, Name: speakersSet, KeyType: nftables.TypeEtherAddr}
	var errors [][]expr.Any
	for _, types := range f.errors {
		errors = append(errors, slices.Concat(protocol(f.icmp), icmpTypes(types), ctState(expr.CtStateBitRELATED|expr.CtStateBitESTABLISHED, expr.CmpOpEq), f.hand()))
	}
	segment := slices.Concat(protocol(unix.IPPROTO_TCP), flags(expr.CmpOpEq, tcpSYN))
	ends := flags(expr.CmpOpNeq, tcpFIN|tcpRST)
	if strict {
		ends = nil
	}
	connections := [][]expr.Any{
		slices.Concat(segment, ctState(expr.CtStateBitNEW, expr.CmpOpNeq), f.hand()),
		slices.Concat(segment, ends, ctState(expr.CtStateBitINVALID, expr.CmpOpNeq), f.hand()),
	}
	l.chains = []chain{l.chain(errorsChain, errorsPriority, errors...), l.chain(connectionsChain, connectionsPriority, connections...)}
	l.signature = userdata.AppendString(nil, userdata.TypeComment, l.sign())
	return l
}

func (l *layout) chain(name string, priority nftables.ChainPriority, rules ...[]expr.Any) chain {
	return chain{&nftables.Chain{
		Name: name, Table: l.table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: &priority,
	}, rules}
}

func (l *layout) sets() []*nftables.Set { return []*nftables.Set{l.relays, l.links, l.speakers} }

// sign names the layout by what it is made of.
func (l *layout) sign() string {
	h := sha256.New()
	for _, s := range l.sets() {
		fmt.Fprintln(h, s.Name, s.KeyType, s.DataType)
	}
	for _, c := range l.chains {
		fmt.Fprintln(h, c.Name, *c.Priority)
		for _, r := range c.rules {
			for _, e := range r {
				data, err := expr.Marshal(byte(l.family.table), e)
				if err != nil {
					panic(fmt.Sprintf("marshal %T: %v", e, err))
				}
				fmt.Fprintf(h, "%x\n", data)
			}
		}
	}
	return fmt.Sprintf("layout %x", h.Sum(nil)[:8])
}

// strict reports whether conntrack calls every segment of a connection that it does not know invalid. By default
// it takes the connection up as a new one, unless the segment ends it (nf_conntrack-sysctl, nf_conntrack_tcp_loose).
func strict() bool {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_loose")
	return err == nil && strings.TrimSpace(string(text)) == "0" // it is not there until somebody uses conntrack
}

func protocol(number byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: first}, &expr.Cmp{Register: first, Data: []byte{number}}}
}

func icmpTypes(types [2]byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: first, Base: expr.PayloadBaseTransportHeader, Len: 1},
		&expr.Range{Register: first, FromData: types[:1], ToData: types[1:]},
	}
}

// flags compares those of a TCP segment in a mask with none.
func flags(op expr.CmpOp, mask byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: first, Base: expr.PayloadBaseTransportHeader, Offset: flagsAt, Len: 1},
		&expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 1, Mask: []byte{mask}, Xor: []byte{0}},
		&expr.Cmp{Op: op, Register: first, Data: []byte{0}},
	}
}

// ctState compares the states of conntrack in a mask with none.
func ctState(bits uint32, op expr.CmpOp) []expr.Any {
	none := native(0)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: first},
		&expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 4, Mask: native(bits), Xor: none},
		&expr.Cmp{Op: op, Register: first, Data: none},
	}
}

// hand gives a packet to the former owner of its destination, if there is one and no speaker sent it. Should a
// speaker's MAC not be known, two nodes may take each other for the former owner: the kernel
// takes one from the time to live of the copy, but looks at it only when it forwards, so it is looked at here.
func (f *family) hand() []expr.Any {
	destination := func(register uint32) expr.Any {
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: f.destination, Len: f.size}
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFTYPE, Register: first},
		&expr.Cmp{Register: first, Data: binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_ETHER)},
		&expr.Payload{DestRegister: first, Base: expr.PayloadBaseLLHeader, Offset: sourceMACAt, Len: macSize},
		&expr.Lookup{SourceRegister: first, SetName: speakersSet, Invert: true},
		&expr.Payload{DestRegister: first, Base: expr.PayloadBaseNetworkHeader, Offset: f.timeToLive, Len: 1},
		&expr.Cmp{Op: expr.CmpOpGt, Register: first, Data: []byte{1}},
		destination(first), &expr.Lookup{SourceRegister: first, SetName: relaysMap, IsDestRegSet: true, DestRegister: first},
		destination(spare), &expr.Lookup{SourceRegister: spare, SetName: linksMap, IsDestRegSet: true, DestRegister: spare},
		&expr.Dup{RegAddr: first, RegDev: spare, IsRegDevSet: true},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
