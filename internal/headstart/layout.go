package headstart

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

const tableName = "holdfast-headstart"

// The sets; with a family's suffix.
const (
	// endpointsMap has the address of the endpoint in each slot of a frontend, and portsMap its port. In one map, the nft
	// command could not show them.
	endpointsMap = "endpoints"
	portsMap     = "ports"
	// masqueradeSet has the frontends whose endpoints see the node as the client.
	masqueradeSet = "masquerade"
)

// slots is how many of a frontend's endpoints are used at most: enough to spread what comes within a second.
const slots = 8

// Priorities of the chains: behind those of kube-proxy at prerouting and output (-100) and at postrouting (100).
const (
	behindDNAT       = -99
	behindMasquerade = 101
)

// timeout is how long the kernel keeps what nobody renews: longer than any speaker wants it.
const timeout = 2 * time.Minute

// kubeProxyMark is the mark by which kube-proxy knows connections to masquerade; its KUBE-FORWARD chain accepts them too.
const kubeProxyMark = 1 << 14

// Registers: the key of a frontend from first on, where a connection goes in to and toPort.
const (
	first  = nft.Reg
	to     = first + 8
	toPort = first + 12
)

// family is what differs between IPv4 and IPv6.
type family struct {
	nft.Family
	suffix string
}

func families() []*family {
	return []*family{{nft.IPv4(), "4"}, {nft.IPv6(), "6"}}
}

// words is how many 32-bit registers an address fills.
func (f *family) words() uint32 { return f.Size / 4 }

// keyOf returns the key of a frontend; false if it is none.
func keyOf(s lb.Start) (f *family, key string, ok bool) {
	number := map[string]byte{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP, "SCTP": unix.IPPROTO_SCTP}[s.Protocol]
	for _, f := range families() {
		if a := s.Address.Unmap(); f.Has(a) && number != 0 && len(s.Endpoints) > 0 {
			return f, string(a.AsSlice()) + string([]byte{number, 0, 0, 0}) + portOf(s.Port), true
		}
	}
	return nil, "", false
}

// portOf encodes a port for a register.
func portOf(port uint16) string {
	return string(append(binary.BigEndian.AppendUint16(nil, port), 0, 0))
}

func layout() *nft.Layout {
	var sets []nft.Set
	lead := nft.Chain{Name: "lead", Kind: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: behindDNAT}
	back := nft.Chain{Name: "masquerade", Kind: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: behindMasquerade}
	for _, f := range families() {
		frontend := nft.Key{f.Address, nft.Protocol, nft.Port}
		slot := append(slices.Clone(frontend), nft.Mark)
		sets = append(sets,
			nft.Set{Name: endpointsMap + f.suffix, Key: slot, Flags: unix.NFT_SET_MAP | unix.NFT_SET_TIMEOUT, Data: f.Address, Timeout: timeout},
			nft.Set{Name: portsMap + f.suffix, Key: slot, Flags: unix.NFT_SET_MAP | unix.NFT_SET_TIMEOUT, Data: nft.Port, Timeout: timeout},
			nft.Set{Name: masqueradeSet + f.suffix, Key: frontend, Flags: unix.NFT_SET_TIMEOUT, Timeout: timeout})
		lead.Rules = append(lead.Rules, f.mark(), f.translate())
		back.Rules = append(back.Rules, f.masquerade())
	}
	chains := []nft.Chain{lead, lead.At("lead-output", unix.NF_INET_LOCAL_OUT), back}
	return nft.NewLayout(nft.Table{Family: unix.NFPROTO_INET, Name: tableName}, sets, chains)
}

// is matches packets of the family.
func (f *family) is() nft.Rule { return nft.Meta(expr.MetaKeyNFPROTO, f.Proto) }

// frontend loads the key of the frontend that a packet is addressed to. TCP, UDP and SCTP have the destination port at the
// same place.
func (f *family) frontend() nft.Rule {
	const destinationPort = 2
	return nft.Expr(
		f.Load(f.Destination, first),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: first + f.words()},
		&expr.Payload{DestRegister: first + f.words() + 1, Base: expr.PayloadBaseTransportHeader, Offset: destinationPort, Len: 2},
	)
}

// mark has kube-proxy masquerade a connection to a frontend that asks for it.
func (f *family) mark() nft.Rule {
	return slices.Concat(f.is(), f.frontend(), nft.Expr(
		&expr.Lookup{SourceRegister: first, SetName: masqueradeSet + f.suffix},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: first},
		&expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 4, Mask: nft.Native(^uint32(kubeProxyMark)), Xor: nft.Native(kubeProxyMark)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: first},
	))
}

// translate leads a connection to the endpoint in one of the frontend's slots.
func (f *family) translate() nft.Rule {
	lookUp := func(set string, into uint32) *expr.Lookup {
		return &expr.Lookup{SourceRegister: first, SetName: set + f.suffix, IsDestRegSet: true, DestRegister: into}
	}
	return slices.Concat(f.is(), f.frontend(), nft.Expr(
		&expr.Numgen{Register: first + f.words() + 2, Modulus: slots, Type: unix.NFT_NG_RANDOM},
		lookUp(endpointsMap, to), lookUp(portsMap, toPort),
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.Proto), RegAddrMin: to, RegProtoMin: toPort},
	))
}

// masquerade translates the source of a connection by its original destination. Nobody comes here whose source was translated
// before.
func (f *family) masquerade() nft.Rule {
	return slices.Concat(f.is(), nft.Expr(
		&expr.Ct{Key: expr.CtKeyDST, Register: first},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: first + f.words()},
		&expr.Ct{Key: expr.CtKeyPROTODST, Register: first + f.words() + 1},
		&expr.Lookup{SourceRegister: first, SetName: masqueradeSet + f.suffix},
		&expr.Masq{},
	))
}
