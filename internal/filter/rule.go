package filter

import (
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// in matches if the key in the registers is in a set of the family.
func (f *family) in(base string) nft.Rule {
	return nft.Expr(&expr.Lookup{SourceRegister: reg, SetName: f.named(base)})
}

// destinationIn matches if the destination is in a set.
func (f *family) destinationIn(base string) nft.Rule {
	return slices.Concat(nft.Expr(f.Load(f.Destination, reg)), f.in(base))
}

// sourceMasked loads the leading bits of the source to a register.
func (f *family) sourceMasked(to uint32, bits int) nft.Rule {
	return f.masked(f.Load(f.Source, to), to, bits)
}

// masked loads an address to a register, and leaves its leading bits.
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

func goTo(chain string) nft.Rule {
	return nft.Expr(&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain})
}

func accept() nft.Rule { return nft.Expr(&expr.Verdict{Kind: expr.VerdictAccept}) }

func drop() nft.Rule { return nft.Expr(&expr.Verdict{Kind: expr.VerdictDrop}) }

// acceptOrGoTo goes to a chain, or accepts if its name is nft.Accepted.
func acceptOrGoTo(chain string) nft.Rule {
	if chain == nft.Accepted {
		return accept()
	}
	return goTo(chain)
}

// rejections answers a refused packet as a host without a listener does: a TCP reset (RFC 9293 section
// 3.10.7.1), else ICMP port unreachable (RFC 1122 section 4.1.3.1).
func rejections() []nft.Rule {
	return []nft.Rule{
		slices.Concat(
			nft.Meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP),
			nft.Expr(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}),
		),
		nft.Expr(&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}),
	}
}

// reg is the register that every rule begins to fill.
const reg = nft.Reg

// Bits of a connection's status, IPS_… of linux/netfilter/nf_conntrack_common.h.
const (
	// ipsConfirmed is set once a connection's first packet has left the node, or reached a socket on it.
	ipsConfirmed = 1 << 3
	// ipsDstNAT is set once its destination was translated.
	ipsDstNAT = 1 << 5
)

// opensConnection matches the first packet of a connection. The conntrack state NEW does not suffice: UDP keeps it
// until the first answer.
func opensConnection() nft.Rule { return nft.Status(expr.CmpOpEq, ipsConfirmed) }

// withoutSYN matches TCP but for the packet that begins a connection.
func withoutSYN() nft.Rule {
	const syn = 0x02
	return slices.Concat(nft.Meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP), nft.TCPFlags(expr.CmpOpEq, syn))
}

// Directions of IP_CT_DIR_….
const directionReply = 1

// isReply matches packets in the reply direction of a connection.
func isReply() nft.Rule {
	return nft.Expr(
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg},
		&expr.Cmp{Register: reg, Data: []byte{directionReply}},
	)
}

// overLimit adds the key to a dynamic set and matches if the limit of its element is exceeded. With update it renews
// the element's timeout.
func overLimit(name string, limit expr.Any, update bool) nft.Rule {
	op := uint32(unix.NFT_DYNSET_OP_ADD)
	if update {
		op = unix.NFT_DYNSET_OP_UPDATE
	}
	return nft.Expr(&expr.Dynset{SrcRegKey: reg, SetName: name, Operation: op, Exprs: []expr.Any{limit}})
}

func perSecond(n int, over bool) *expr.Limit {
	return &expr.Limit{
		Type:  expr.LimitTypePkts,
		Rate:  uint64(n),
		Unit:  expr.LimitTimeSecond,
		Burst: uint32(n),
		Over:  over,
	}
}
