package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Reg is the first of the 16 registers of 32 bits.
const Reg = unix.NFT_REG32_00

// expression is the netlink form of one expression of a rule: name and data.
type expression = []byte

// Rule is a sequence of expressions. Evaluation stops at the first expression that does not match.
type Rule []expression

// Chain is a list of rules.
type Chain struct {
	Name string
	// Kind is the type of a base chain, such as "filter"; empty for any other chain.
	Kind string
	// Hook and Priority are where the kernel calls a base chain: NF_INET_… and NF_IP_PRI_…
	Hook     uint32
	Priority int32
	Rules    []Rule
}

// At returns a copy of the chain with another name at another hook.
func (c Chain) At(name string, hook uint32) Chain {
	c.Name = name
	c.Hook = hook
	return c
}

// Expr makes a rule of the library's expressions. It panics if the library cannot encode one.
func Expr(steps ...expr.Any) Rule {
	r := make(Rule, 0, len(steps))
	for _, s := range steps {
		data, err := expr.Marshal(unix.NFPROTO_INET, s)
		if err != nil {
			panic(fmt.Sprintf("marshal %T: %v", s, err))
		}

		r = append(r, data)
	}

	return r
}

// Meta matches a packet by its metadata, such as its protocol or its link.
func Meta(key expr.MetaKey, want ...byte) Rule {
	return Expr(
		&expr.Meta{Key: key, Register: Reg},
		&expr.Cmp{Register: Reg, Data: want},
	)
}

// State compares (conntrack state & bits) with 0. It overwrites Reg.
func State(op expr.CmpOp, bits uint32) Rule {
	return Conntrack(Reg, expr.CtKeySTATE, op, bits)
}

// Status compares (conntrack status & bits) with 0. The bits are IPS_… of the kernel. It overwrites Reg.
func Status(op expr.CmpOp, bits uint32) Rule {
	return Conntrack(Reg, expr.CtKeySTATUS, op, bits)
}

// Conntrack compares (a field of the packet's conntrack entry & bits) with 0. It overwrites the register.
func Conntrack(register uint32, key expr.CtKey, op expr.CmpOp, bits uint32) Rule {
	return Expr(
		&expr.Ct{Key: key, Register: register},
		Mask(register, Native(bits)),
		&expr.Cmp{
			Op:       op,
			Register: register,
			Data:     Native(0),
		},
	)
}

// TCPFlags compares (TCP flags & bits) with 0 (RFC 9293 section 3.1). It overwrites Reg.
func TCPFlags(op expr.CmpOp, bits byte) Rule {
	const offFlags = 13
	return Expr(
		&expr.Payload{
			DestRegister: Reg,
			Base:         expr.PayloadBaseTransportHeader,
			Offset:       offFlags,
			Len:          1,
		},
		Mask(Reg, []byte{bits}),
		&expr.Cmp{
			Op:       op,
			Register: Reg,
			Data:     []byte{0},
		},
	)
}

// Mask sets a register to (register & bits).
func Mask(register uint32, bits []byte) *expr.Bitwise {
	return &expr.Bitwise{
		SourceRegister: register,
		DestRegister:   register,
		Len:            uint32(len(bits)),
		Mask:           bits,
		Xor:            make([]byte, len(bits)),
	}
}

// ChangeMark clears the bits of a mask in a packet's mark, and sets others. It overwrites Reg.
func ChangeMark(mask, set uint32) Rule {
	return Expr(
		&expr.Meta{Key: expr.MetaKeyMARK, Register: Reg},
		&expr.Bitwise{
			SourceRegister: Reg,
			DestRegister:   Reg,
			Len:            4,
			Mask:           Native(^(mask | set)),
			Xor:            Native(set),
		},
		&expr.Meta{
			Key:            expr.MetaKeyMARK,
			SourceRegister: true,
			Register:       Reg,
		},
	)
}

// Native encodes a number in the byte order of registers.
func Native(n uint32) []byte {
	return binary.NativeEndian.AppendUint32(nil, n)
}

// Family holds the differences between IPv4 and IPv6 in rules and sets.
type Family struct {
	// Suffix ends the names of the family's sets and chains in a table of both families.
	Suffix string
	// Proto is the NFPROTO number.
	Proto byte
	// Size is the size of an address in bytes.
	Size uint32
	// Source and Destination are the offsets of the addresses in the header, in bytes (RFC 791 section 3.1, RFC 8200
	// section 3).
	Source, Destination uint32
	// Address is the type of an address in a set.
	Address Type
	// ICMP is the protocol number of the family's ICMP.
	ICMP byte
	// offChecksum is the offset of the header's checksum in bytes; 0 if the header has none.
	offChecksum uint32
}

// IPv4 returns the family of IPv4.
func IPv4() Family {
	return Family{
		Suffix:      "4",
		Proto:       unix.NFPROTO_IPV4,
		Size:        4,
		Source:      12,
		Destination: 16,
		Address:     IPv4Address,
		ICMP:        unix.IPPROTO_ICMP,
		offChecksum: 10,
	}
}

// IPv6 returns the family of IPv6.
func IPv6() Family {
	return Family{
		Suffix:      "6",
		Proto:       unix.NFPROTO_IPV6,
		Size:        16,
		Source:      8,
		Destination: 24,
		Address:     IPv6Address,
		ICMP:        unix.IPPROTO_ICMPV6,
	}
}

// Families returns both families.
func Families() []Family {
	return []Family{IPv4(), IPv6()}
}

// Has reports whether an address is of the family. An IPv4-mapped IPv6 address counts as IPv6.
func (f *Family) Has(a netip.Addr) bool {
	return a.BitLen() == int(8*f.Size)
}

// Load copies the address at an offset of the header, in bytes, to a register.
func (f *Family) Load(offset, to uint32) *expr.Payload {
	return &expr.Payload{
		DestRegister: to,
		Base:         expr.PayloadBaseNetworkHeader,
		Offset:       offset,
		Len:          f.Size,
	}
}

// Write copies the address in Reg to an offset of the header, in bytes, and updates the checksums. The checksum of TCP
// and UDP covers the addresses too (RFC 9293 section 3.1). Write encodes the expression itself because the library
// omits the flag for the TCP or UDP checksum if the header has no checksum, as in IPv6.
func (f *Family) Write(offset uint32) Rule {
	var a attributes
	a.putText(unix.NFTA_EXPR_NAME, "payload")
	a.nest(unix.NFTA_EXPR_DATA, func() {
		a.putNumber(unix.NFTA_PAYLOAD_SREG, Reg)
		a.putNumber(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER)
		a.putNumber(unix.NFTA_PAYLOAD_OFFSET, offset)
		a.putNumber(unix.NFTA_PAYLOAD_LEN, f.Size)
		if f.offChecksum > 0 {
			a.putNumber(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_INET)
			a.putNumber(unix.NFTA_PAYLOAD_CSUM_OFFSET, f.offChecksum)
		}

		a.putNumber(unix.NFTA_PAYLOAD_CSUM_FLAGS, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR)
	})

	return Rule{expression(a)}
}
