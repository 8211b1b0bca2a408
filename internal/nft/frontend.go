package nft

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Where the ports lie in the headers of TCP (RFC 9293), UDP (RFC 768) and SCTP (RFC 9260).
const (
	SourcePort      = 0
	DestinationPort = 2
)

// Words is how many 32-bit registers an address fills.
func (f *Family) Words() uint32 { return f.Size / 4 }

// Is matches packets of the family.
func (f *Family) Is() Rule { return Meta(expr.MetaKeyNFPROTO, f.Proto) }

// PortType is the type of a port: address, protocol and number.
func (f *Family) PortType() Key { return Key{f.Address, Protocol, Port} }

// LoadPort loads a port of a packet as a key.
func (f *Family) LoadPort(address, port uint32) Rule {
	return Expr(
		f.Load(address, Reg),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: Reg + f.Words()},
		&expr.Payload{DestRegister: Reg + f.Words() + 1, Base: expr.PayloadBaseTransportHeader, Offset: port, Len: 2},
	)
}

// AfterPort is the register behind the key of a port.
func (f *Family) AfterPort() uint32 { return Reg + f.Words() + 2 }

// LoadFrontend loads the port that a packet is addressed to.
func (f *Family) LoadFrontend() Rule { return f.LoadPort(f.Destination, DestinationPort) }

// LoadAsked loads the port that a packet's connection was addressed to before a translation. It encodes an expression
// itself: the library knows only an address of either family, and nft 1.0.6 aborts when it reads that in a key,
// whatever it is to list.
func (f *Family) LoadAsked() Rule {
	address := map[byte]uint32{unix.NFPROTO_IPV4: unix.NFT_CT_DST_IP, unix.NFPROTO_IPV6: unix.NFT_CT_DST_IP6}[f.Proto]
	var a attributes
	a.putText(unix.NFTA_EXPR_NAME, "ct")
	a.nest(unix.NFTA_EXPR_DATA, func() {
		a.putNumber(unix.NFTA_CT_KEY, address)
		a.putNumber(unix.NFTA_CT_DREG, Reg)
		a.put(unix.NFTA_CT_DIRECTION, 0)
	})

	return append(Rule{expression(a)}, Expr(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: Reg + f.Words()},
		&expr.Ct{Key: expr.CtKeyPROTODST, Register: Reg + f.Words() + 1},
	)...)
}

// Lead translates the destination of a connection to the address and the port that two maps have for the key from Reg
// on.
func (f *Family) Lead(addresses, ports string) Rule {
	const to, toPort = Reg + 8, Reg + 12
	lookUp := func(set string, into uint32) *expr.Lookup {
		return &expr.Lookup{SourceRegister: Reg, SetName: set + f.Suffix, IsDestRegSet: true, DestRegister: into}
	}
	return Expr(lookUp(addresses, to), lookUp(ports, toPort),
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.Proto), RegAddrMin: to, RegProtoMin: toPort})
}

// Masquerade translates the source of a connection whose original destination is in a set.
func (f *Family) Masquerade(set string) Rule {
	return append(f.LoadAsked(), Expr(&expr.Lookup{SourceRegister: Reg, SetName: set + f.Suffix}, &expr.Masq{})...)
}

// PortSize is the size of a port in a key, behind the address.
const PortSize = 8

// PortKey is a port of an address as a key.
func PortKey(a netip.Addr, protocol byte, port uint16) string {
	return string(append(a.AsSlice(), protocol, 0, 0, 0)) + PortValue(port) + "\x00\x00"
}

// PortValue is the number of a port as a value, or as a key without other fields.
func PortValue(port uint16) string { return string(binary.BigEndian.AppendUint16(nil, port)) }

// Protocols are the protocols of frontends, with their numbers in the IP header.
var Protocols = map[string]byte{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP, "SCTP": unix.IPPROTO_SCTP}

// ProtocolName is the name of a protocol number, empty if a frontend cannot have it.
func ProtocolName(number byte) string {
	for name, n := range Protocols {
		if n == number {
			return name
		}
	}
	return ""
}
