package filter

import (
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// in matches if a set of the family has the key in the registers.
func (f *family) in(base string) nft.Rule {
	return nft.Expr(&expr.Lookup{SourceRegister: reg, SetName: f.named(base)})
}

// destinationIn matches if a set of the family has the destination.
func (f *family) destinationIn(base string) nft.Rule {
	load := nft.Expr(f.Load(f.Destination, reg))
	return slices.Concat(load, f.in(base))
}

// sourceMasked loads the source to a register, and clears all but its leading bits.
func (f *family) sourceMasked(to uint32, bits int) nft.Rule {
	return f.masked(f.Load(f.Source, to), to, bits)
}

// masked loads an address to a register, and clears all but its leading bits.
func (f *family) masked(load *expr.Payload, to uint32, bits int) nft.Rule {
	if bits == int(f.Size)*8 {
		return nft.Expr(load)
	}

	m := make([]byte, f.Size)
	for i := range bits {
		m[i/8] |= 0x80 >> (i % 8)
	}

	return nft.Expr(load, nft.Mask(to, m))
}

// goTo continues in a chain and does not return.
func goTo(chain string) nft.Rule {
	return nft.Expr(&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain})
}

// accept accepts the packet: no later rule of the base chain sees it.
func accept() nft.Rule {
	return nft.Expr(&expr.Verdict{Kind: expr.VerdictAccept})
}

// drop drops the packet.
func drop() nft.Rule {
	return nft.Expr(&expr.Verdict{Kind: expr.VerdictDrop})
}

// acceptOrGoTo continues in a chain, or accepts the packet if the name is nft.Accepted.
func acceptOrGoTo(chain string) nft.Rule {
	if chain == nft.Accepted {
		return accept()
	}
	return goTo(chain)
}

// rejections returns the rules that answer a refused packet like a host without a listener: by a TCP reset (RFC 9293
// section 3.10.7.1), otherwise by ICMP port unreachable (RFC 1122 section 4.1.3.1).
func rejections() []nft.Rule {
	return []nft.Rule{
		slices.Concat(
			nft.Meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP),
			nft.Expr(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}),
		),
		nft.Expr(&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}),
	}
}

// reg is the first register that a rule fills.
const reg = nft.Reg

// Bits of a connection's status, IPS_… of linux/netfilter/nf_conntrack_common.h.
const (
	// ipsConfirmed is set when the first packet of a connection has left the node or reached a socket.
	ipsConfirmed = 1 << 3
	// ipsDstNAT is set when the destination of a connection has been translated.
	ipsDstNAT = 1 << 5
)

// opensConnection matches the first packet of a connection. The conntrack state NEW does not suffice: a UDP connection
// keeps it until the first reply.
func opensConnection() nft.Rule {
	return nft.Status(expr.CmpOpEq, ipsConfirmed)
}

// withoutSYN matches all TCP segments but the first of a connection.
func withoutSYN() nft.Rule {
	const syn = 0x02
	return slices.Concat(
		nft.Meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP),
		nft.TCPFlags(expr.CmpOpEq, syn),
	)
}

// directionReply is IP_CT_DIR_REPLY of linux/netfilter/nf_conntrack_tuple_common.h.
const directionReply = 1

// isReply matches packets in the reply direction of a connection.
func isReply() nft.Rule {
	return nft.Expr(
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg},
		&expr.Cmp{Register: reg, Data: []byte{directionReply}},
	)
}

// overLimit adds the key in the registers to a dynamic set, and matches if the limit of its element is exceeded. With
// update it renews the timeout of the element.
func overLimit(name string, limit expr.Any, update bool) nft.Rule {
	op := uint32(unix.NFT_DYNSET_OP_ADD)
	if update {
		op = unix.NFT_DYNSET_OP_UPDATE
	}
	return nft.Expr(&expr.Dynset{
		SrcRegKey: reg,
		SetName:   name,
		Operation: op,
		Exprs:     []expr.Any{limit},
	})
}

// perSecond matches up to n packets per second; with over, the packets beyond.
func perSecond(n int, over bool) *expr.Limit {
	return &expr.Limit{
		Type:  expr.LimitTypePkts,
		Rate:  uint64(n),
		Unit:  expr.LimitTimeSecond,
		Burst: uint32(n),
		Over:  over,
	}
}
