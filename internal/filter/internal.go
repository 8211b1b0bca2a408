package filter

import (
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// Traffic from this node and its pods to a frontend with a ClusterIP is made traffic to
// that ClusterIP. Kube-proxy would apply
// spec.loadBalancerSourceRanges to it, whatever its source: so it must not see
// the external address at all, and the destination is rewritten before conntrack
// takes it down. A mark carries the packet to where conntrack has made the
// connection, a label marks the connection, and answers on a connection so
// labelled get the external address back as their source, once kube-proxy's DNAT
// is undone.

// internalChains returns the chains that do so, for pods (prerouting) and for the node itself (output).
func internalChains() []nft.Chain {
	pods := nft.Chain{Name: "internal", Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: beforeConntrack}
	// Of kind route, so that the kernel looks for the way again once the destination is another.
	own := nft.Chain{Name: "internal-output", Kind: "route", Hook: unix.NF_INET_LOCAL_OUT, Priority: beforeConntrack}
	answers := nft.Chain{Name: "answers"}
	back := nft.Chain{Name: "external", Kind: "filter", Hook: unix.NF_INET_POST_ROUTING, Priority: afterNAT,
		Rules: []nft.Rule{slices.Concat(isReply(), hasLabel(), goTo(answers.Name))}}
	for _, f := range families() {
		pods.Rules = append(pods.Rules, f.toClusterIP(fromInside()))
		own.Rules = append(own.Rules, f.toClusterIP(isTracked()))
		answers.Rules = append(answers.Rules, slices.Concat(f.Match(), f.fromExternal()))
	}

	return []nft.Chain{pods, own, answers, back, back.At("external-input", unix.NF_INET_LOCAL_IN)}
}

// spare is a register that no key reaches.
const spare = reg + 8

// fromInside matches packets of this node and its pods. A source address would prove nothing: a forged one may come in
// from outside.
func fromInside() nft.Rule {
	return nft.Expr(
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: spare},
		&expr.Lookup{SourceRegister: spare, SetName: insideSet},
	)
}

// isTracked matches what conntrack is to see. What the node only hands on to another
// owner of the address is none of its own.
func isTracked() nft.Rule {
	return nft.Conntrack(spare, expr.CtKeySTATE, expr.CmpOpEq, expr.CtStateBitUNTRACKED)
}

func isUntracked() nft.Rule { return nft.State(expr.CmpOpNeq, expr.CtStateBitUNTRACKED) }

// toClusterIP rewrites the destination of a packet to a frontend, if it is from where it should be, and marks it.
// Who is not on the way to such a frontend is let go by the first look.
func (f *family) toClusterIP(from nft.Rule) nft.Rule {
	return slices.Concat(
		f.Match(),
		f.LoadFrontend(),
		f.lookUp(internalSet),
		from,
		f.Write(f.Destination),
		nft.ChangeMark(0, internalMark),
	)
}

// fromExternal rewrites the source of an answer.
func (f *family) fromExternal() nft.Rule {
	return slices.Concat(f.LoadPort(f.Source, nft.SourcePort), f.lookUp(externalSet), f.Write(f.Source))
}

// lookUp replaces the key in the registers by the address that a map has for it.
func (f *family) lookUp(base string) nft.Rule {
	return nft.Expr(&expr.Lookup{SourceRegister: reg, SetName: f.named(base), IsDestRegSet: true, DestRegister: reg})
}

// setLabel labels the connection of a marked packet and takes the mark away.
func setLabel() nft.Rule {
	return slices.Concat(
		nft.Expr(&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
			nft.Mask(reg, nft.Native(internalMark)),
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: nft.Native(0)}),
		nft.ChangeMark(internalMark, 0),
		nft.Expr(&expr.Immediate{Register: reg, Data: internalLabel[:]},
			&expr.Ct{Key: expr.CtKeyLABELS, SourceRegister: true, Register: reg}),
	)
}

// hasLabel matches packets of such a connection.
func hasLabel() nft.Rule {
	return nft.Expr(&expr.Ct{Key: expr.CtKeyLABELS, Register: reg},
		nft.Mask(reg, internalLabel[:]),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 16)})
}
