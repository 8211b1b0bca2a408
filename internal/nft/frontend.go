package nft

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Offsets of the ports in the headers of TCP (RFC 9293), UDP (RFC 768) and SCTP (RFC 9260), in bytes.
const (
	SourcePort      = 0
	DestinationPort = 2
)

// Words returns the number of 32-bit registers that an address fills.
func (f *Family) Words() uint32 {
	return f.Size / 4
}

// Match matches the packets of the family.
func (f *Family) Match() Rule {
	return Meta(expr.MetaKeyNFPROTO, f.Proto)
}

// PortType returns the key type of a port: address, protocol and number.
func (f *Family) PortType() Key {
	return Key{f.Address, Protocol, Port}
}

// LoadPort loads a port of a packet into the registers from Reg on, as a key of PortType. The arguments are the offsets
// of the address in the network header and of the number in the transport header.
func (f *Family) LoadPort(address, port uint32) Rule {
	return Expr(
		f.Load(address, Reg),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: Reg + f.Words()},
		&expr.Payload{
			DestRegister: Reg + f.Words() + 1,
			Base:         expr.PayloadBaseTransportHeader,
			Offset:       port,
			Len:          2,
		},
	)
}

// AfterPort returns the first register after a key that LoadPort loaded.
func (f *Family) AfterPort() uint32 {
	return Reg + f.Words() + 2
}

// LoadFrontend loads the destination port of a packet.
func (f *Family) LoadFrontend() Rule {
	return f.LoadPort(f.Destination, DestinationPort)
}

// LoadOriginal loads the original destination port of a packet's connection: the one before a translation.
func (f *Family) LoadOriginal() Rule {
	return append(f.LoadTupleDestination(0, Reg), Expr(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: Reg + f.Words()},
		&expr.Ct{Key: expr.CtKeyPROTODST, Register: Reg + f.Words() + 1},
	)...)
}

// LoadTupleDestination loads the destination of one direction of a packet's connection: 0 for the original direction,
// 1 for the reply direction. It encodes the address itself, because the library has only NFT_CT_DST, which means either
// family: nft 1.0.6 aborts when it finds that expression in a key, even while it lists something else.
func (f *Family) LoadTupleDestination(direction byte, to uint32) Rule {
	address := map[byte]uint32{
		unix.NFPROTO_IPV4: unix.NFT_CT_DST_IP,
		unix.NFPROTO_IPV6: unix.NFT_CT_DST_IP6,
	}[f.Proto]

	var a attributes
	a.putText(unix.NFTA_EXPR_NAME, "ct")
	a.nest(unix.NFTA_EXPR_DATA, func() {
		a.putNumber(unix.NFTA_CT_KEY, address)
		a.putNumber(unix.NFTA_CT_DREG, to)
		a.put(unix.NFTA_CT_DIRECTION, direction)
	})

	return Rule{expression(a)}
}

// DNAT translates the destination of a connection. It looks up the key from Reg on in two maps, which hold the new
// address and the new port. The arguments are the maps' names without the family's suffix.
func (f *Family) DNAT(addresses, ports string) Rule {
	const (
		addressReg = Reg + 8
		portReg    = Reg + 12
	)
	lookUp := func(set string, into uint32) *expr.Lookup {
		return &expr.Lookup{
			SourceRegister: Reg,
			SetName:        set + f.Suffix,
			IsDestRegSet:   true,
			DestRegister:   into,
		}
	}

	return Expr(
		lookUp(addresses, addressReg),
		lookUp(ports, portReg),
		&expr.NAT{
			Type:        expr.NATTypeDestNAT,
			Family:      uint32(f.Proto),
			RegAddrMin:  addressReg,
			RegProtoMin: portReg,
		},
	)
}

// Masquerade translates the source of a connection if its original destination is in a set.
func (f *Family) Masquerade(set string) Rule {
	inSet := &expr.Lookup{SourceRegister: Reg, SetName: set + f.Suffix}
	return append(f.LoadOriginal(), Expr(inSet, &expr.Masq{})...)
}

// PortSize is the size of protocol and port in a key of PortType, after the address, in bytes.
const PortSize = 8

// PortKey encodes an address, a protocol number and a port as a key of PortType.
func PortKey(a netip.Addr, protocol byte, port uint16) string {
	key := append(a.AsSlice(), protocol, 0, 0, 0)
	return string(key) + PortValue(port) + "\x00\x00"
}

// PortValue encodes a port as the value of a map, or as a key of one field.
func PortValue(port uint16) string {
	return string(binary.BigEndian.AppendUint16(nil, port))
}

// Protocols maps the names of the protocols of frontends to their numbers in the IP header.
var Protocols = map[string]byte{
	"TCP":  unix.IPPROTO_TCP,
	"UDP":  unix.IPPROTO_UDP,
	"SCTP": unix.IPPROTO_SCTP,
}

// ProtocolName returns the name of a protocol number; empty if no frontend can have the protocol.
func ProtocolName(number byte) string {
	for name, n := range Protocols {
		if n == number {
			return name
		}
	}

	return ""
}
