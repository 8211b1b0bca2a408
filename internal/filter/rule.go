package filter

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// expression is a step of a rule as the kernel takes it: name and data.
type expression = []byte

// rule is a run of expressions; the first that does not match ends it.
type rule []expression

// chain is a list of rules; with a kind it is a base chain, called at a hook.
type chain struct {
	name     string
	kind     string
	hook     uint32
	priority int32
	rules    []rule
}

// reg is the register that every rule begins to fill; 32-bit registers, 16 of them.
const reg = unix.NFT_REG32_00

// say makes expressions of the library's.
func say(steps ...expr.Any) rule {
	r := make(rule, 0, len(steps))
	for _, s := range steps {
		data, err := expr.Marshal(unix.NFPROTO_INET, s)
		if err != nil {
			panic(fmt.Sprintf("marshal %T: %v", s, err))
		}
		r = append(r, data)
	}
	return r
}

// join makes one rule of parts.
func join(parts ...rule) rule {
	var r rule
	for _, p := range parts {
		r = append(r, p...)
	}
	return r
}

func meta(key expr.MetaKey, want ...byte) rule {
	return say(&expr.Meta{Key: key, Register: reg}, &expr.Cmp{Register: reg, Data: want})
}

// is matches packets of the family.
func (f *family) is() rule { return meta(expr.MetaKeyNFPROTO, f.proto) }

// address loads the source or destination to a register.
func (f *family) address(offset, to uint32) *expr.Payload {
	return &expr.Payload{DestRegister: to, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.size}
}

// Where the ports lie in the headers of TCP (RFC 9293), UDP (RFC 768) and SCTP (RFC 9260).
const (
	sourcePort      = 0
	destinationPort = 2
)

// door loads address, protocol and port, the key of a door, and returns the register after them.
func (f *family) door(address, port uint32) (rule, uint32) {
	return say(
		f.address(address, reg),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg + f.words()},
		&expr.Payload{DestRegister: reg + f.words() + 1, Base: expr.PayloadBaseTransportHeader, Offset: port, Len: 2},
	), reg + f.words() + 2
}

// to loads the key of the door that a packet comes to.
func (f *family) to() (rule, uint32) { return f.door(f.destination, destinationPort) }

// in matches if the registers from the first on are a key of a set.
func (f *family) in(base string) rule { return in(f.named(base)) }

func in(name string) rule { return say(&expr.Lookup{SourceRegister: reg, SetName: name}) }

// destinationIn matches if the destination is in a set.
func (f *family) destinationIn(base string) rule {
	return join(say(f.address(f.destination, reg)), f.in(base))
}

// sourceMasked loads the leading bits of the source to a register.
func (f *family) sourceMasked(to uint32, bits int) rule {
	load := say(f.address(f.source, to))
	if bits == int(f.size)*8 {
		return load
	}
	return join(load, say(&expr.Bitwise{
		SourceRegister: to, DestRegister: to, Len: f.size, Mask: mask(bits, f.size), Xor: make([]byte, f.size),
	}))
}

// mask returns size bytes with so many leading ones.
func mask(bits int, size uint32) []byte {
	m := make([]byte, size)
	for i := range bits {
		m[i/8] |= 0x80 >> (i % 8)
	}
	return m
}

func goTo(chain string) rule { return say(&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}) }

func accept() rule { return say(&expr.Verdict{Kind: expr.VerdictAccept}) }

func drop() rule { return say(&expr.Verdict{Kind: expr.VerdictDrop}) }

// pass accepts, or goes to a chain where one is named.
func pass(chain string) rule {
	if chain == accepted {
		return accept()
	}
	return goTo(chain)
}

// rejections answers a refused packet as a host without a listener does: a TCP reset (RFC 9293 section
// 3.10.7.1), else ICMP port unreachable (RFC 1122 section 4.1.3.1).
func rejections() []rule {
	return []rule{
		join(meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP), say(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})),
		say(&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}),
	}
}

// state matches the states of conntrack in a mask.
func state(bits uint32) rule {
	return say(&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native(bits), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: native(0)})
}

// Bits of a connection's status, IPS_… of linux/netfilter/nf_conntrack_common.h.
const (
	// ipsConfirmed is set once a connection's first packet has left the node, or reached a socket on it.
	ipsConfirmed = 1 << 3
	// ipsDstNAT is set once its destination was translated.
	ipsDstNAT = 1 << 5
)

// status matches a connection that has the bit, or has it not.
func status(bit uint32, set bool) rule {
	op := expr.CmpOpEq
	if set {
		op = expr.CmpOpNeq
	}
	return say(&expr.Ct{Key: expr.CtKeySTATUS, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native(bit), Xor: native(0)},
		&expr.Cmp{Op: op, Register: reg, Data: native(0)})
}

// opening matches the packet that would open a connection. The state "new" would not do: UDP has it until
// the first answer.
func opening() rule { return status(ipsConfirmed, false) }

// withoutSYN matches TCP but for the packet that begins a connection (RFC 9293 section 3.1).
func withoutSYN() rule {
	const flagsAt, syn = 13, 0x02
	return join(meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP), say(
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: flagsAt, Len: 1},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{syn}, Xor: []byte{0}},
		&expr.Cmp{Register: reg, Data: []byte{0}}))
}

// Directions of IP_CT_DIR_….
const directionReply = 1

// reply matches what comes back on a connection.
func reply() rule {
	return say(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg}, &expr.Cmp{Register: reg, Data: []byte{directionReply}})
}

// over remembers the key in a set and matches when a limit of its own is exceeded. update renews the
// element's life.
func over(name string, limit expr.Any, update bool) rule {
	op := uint32(unix.NFT_DYNSET_OP_ADD)
	if update {
		op = unix.NFT_DYNSET_OP_UPDATE
	}
	return say(&expr.Dynset{SrcRegKey: reg, SetName: name, Operation: op, Exprs: []expr.Any{limit}})
}

func perSecond(n int, over bool) *expr.Limit {
	return &expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(n), Unit: expr.LimitTimeSecond, Burst: uint32(n), Over: over}
}

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
