package filter

import (
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// Traffic from this node and its pods to a frontend with a ClusterIP is redirected to the ClusterIP. kube-proxy applies
// spec.loadBalancerSourceRanges to every packet to the external address, whatever its source. So kube-proxy must not
// see that address:
//
//  1. The destination is rewritten before conntrack creates the connection, and the packet gets a mark.
//  2. After conntrack the mark is replaced by a label of the connection.
//  3. Replies of a labelled connection get the external address as their source, after kube-proxy's DNAT is undone.

// internalChains returns the chains of the redirection, for pods (prerouting) and for the node itself (output).
func internalChains() []nft.Chain {
	pods := nft.Chain{
		Name:     "internal",
		Kind:     "filter",
		Hook:     unix.NF_INET_PRE_ROUTING,
		Priority: beforeConntrack,
	}
	// In a chain of kind route the kernel looks up the route again after the destination has changed.
	own := nft.Chain{
		Name:     "internal-output",
		Kind:     "route",
		Hook:     unix.NF_INET_LOCAL_OUT,
		Priority: beforeConntrack,
	}
	answers := nft.Chain{Name: "answers"}
	back := nft.Chain{
		Name:     "external",
		Kind:     "filter",
		Hook:     unix.NF_INET_POST_ROUTING,
		Priority: afterNAT,
		Rules: []nft.Rule{slices.Concat(
			isReply(),
			hasLabel(),
			goTo(answers.Name),
		)},
	}

	for _, f := range families() {
		pods.Rules = append(pods.Rules, f.toClusterIP(fromInside()))
		own.Rules = append(own.Rules, f.toClusterIP(isTracked()))
		answers.Rules = append(answers.Rules, slices.Concat(f.Match(), f.fromExternal()))
	}

	return []nft.Chain{pods, own, answers, back, back.At("external-input", unix.NF_INET_LOCAL_IN)}
}

// spare is a register behind the key of a frontend.
const spare = reg + 8

// fromInside matches packets of this node and its pods by their link. A source address proves nothing: a machine
// outside may forge it.
func fromInside() nft.Rule {
	return nft.Expr(
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: spare},
		&expr.Lookup{SourceRegister: spare, SetName: insideSet},
	)
}

// isTracked matches packets that conntrack will see. The node does not track packets that it relays to the former owner
// of an address.
func isTracked() nft.Rule {
	return nft.Conntrack(spare, expr.CtKeySTATE, expr.CmpOpEq, expr.CtStateBitUNTRACKED)
}

// isUntracked matches packets that conntrack does not see.
func isUntracked() nft.Rule {
	return nft.State(expr.CmpOpNeq, expr.CtStateBitUNTRACKED)
}

// toClusterIP rewrites the destination of a packet to a frontend and marks the packet, if its origin matches. The
// lookup of the frontend comes first because it fails for most packets.
func (f *family) toClusterIP(origin nft.Rule) nft.Rule {
	return slices.Concat(
		f.Match(),
		f.LoadFrontend(),
		f.lookUp(internalSet),
		origin,
		f.Write(f.Destination),
		nft.ChangeMark(0, internalMark),
	)
}

// fromExternal rewrites the source of a reply to the external address.
func (f *family) fromExternal() nft.Rule {
	return slices.Concat(
		f.LoadPort(f.Source, nft.SourcePort),
		f.lookUp(externalSet),
		f.Write(f.Source),
	)
}

// lookUp replaces the key in the registers by its address in a map. It fails without one.
func (f *family) lookUp(base string) nft.Rule {
	return nft.Expr(&expr.Lookup{
		SourceRegister: reg,
		SetName:        f.named(base),
		IsDestRegSet:   true,
		DestRegister:   reg,
	})
}

// setLabel labels the connection of a marked packet and removes the mark.
func setLabel() nft.Rule {
	hasMark := nft.Expr(
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		nft.Mask(reg, nft.Native(internalMark)),
		&expr.Cmp{
			Op:       expr.CmpOpNeq,
			Register: reg,
			Data:     nft.Native(0),
		},
	)
	label := nft.Expr(
		&expr.Immediate{Register: reg, Data: internalLabel[:]},
		&expr.Ct{
			Key:            expr.CtKeyLABELS,
			SourceRegister: true,
			Register:       reg,
		},
	)
	return slices.Concat(hasMark, nft.ChangeMark(internalMark, 0), label)
}

// hasLabel matches packets of a labelled connection.
func hasLabel() nft.Rule {
	return nft.Expr(
		&expr.Ct{Key: expr.CtKeyLABELS, Register: reg},
		nft.Mask(reg, internalLabel[:]),
		&expr.Cmp{
			Op:       expr.CmpOpNeq,
			Register: reg,
			Data:     make([]byte, len(internalLabel)),
		},
	)
}
