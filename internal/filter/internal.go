package filter

import (
	"math"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Traffic from within the cluster to a door with a ClusterIP is made traffic to
// that ClusterIP, on the sender's own node. Kube-proxy would apply
// spec.loadBalancerSourceRanges to it, whatever its source: so it must not see
// the external address at all, and the destination is rewritten before conntrack
// takes it down. A mark carries the packet to where conntrack has made the
// connection, a label marks the connection, and answers on a connection so
// labelled get the external address back as their source, once kube-proxy's DNAT
// is undone.

// rewriting returns the chains that do so, for pods (prerouting) and for the node itself (output).
func rewriting() []chain {
	pods := chain{name: "internal", kind: "filter", hook: unix.NF_INET_PRE_ROUTING, priority: beforeConntrack}
	// Of kind route, so that the kernel looks for the way again once the destination is another.
	own := chain{name: "internal-output", kind: "route", hook: unix.NF_INET_LOCAL_OUT, priority: beforeConntrack}
	label := chain{name: "internal-label", kind: "filter", hook: unix.NF_INET_LOCAL_OUT, priority: guardPriority, rules: []rule{labelling()}}
	answers := chain{name: "answers"}
	back := chain{name: "external", kind: "filter", hook: unix.NF_INET_POST_ROUTING, priority: afterNAT,
		rules: []rule{join(reply(), labelled(), goTo(answers.name))}}
	for _, f := range families() {
		pods.rules = append(pods.rules, f.toClusterIP(f.fromPod()))
		own.rules = append(own.rules, f.toClusterIP(tracked()))
		answers.rules = append(answers.rules, join(f.is(), f.fromExternal()))
	}
	return []chain{pods, own, label, answers, back, back.at("external-input", unix.NF_INET_LOCAL_IN)}
}

// spare is a register that no key reaches.
const spare = reg + 8

// fromPod matches packets of this node's pods. The address alone would not do: a forged one may come in from
// outside.
func (f *family) fromPod() rule {
	return say(
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: spare}, &expr.Lookup{SourceRegister: spare, SetName: uplinksSet, Invert: true},
		f.address(f.source, spare), &expr.Lookup{SourceRegister: spare, SetName: f.named(podsSet)},
	)
}

// tracked matches what conntrack is to see. What the node only hands on to another
// owner of the address is none of its own.
func tracked() rule {
	return say(&expr.Ct{Key: expr.CtKeySTATE, Register: spare},
		&expr.Bitwise{SourceRegister: spare, DestRegister: spare, Len: 4, Mask: native(expr.CtStateBitUNTRACKED), Xor: native(0)},
		&expr.Cmp{Register: spare, Data: native(0)})
}

// toClusterIP rewrites the destination of a packet to a door, if it is from where it should be, and marks it.
// Who is not on the way to such a door is let go by the first look.
func (f *family) toClusterIP(from rule) rule {
	key, _ := f.to()
	return join(f.is(), key, f.mapped(internalSet), from, f.write(f.destination), setMark(math.MaxUint32, internalMark))
}

// fromExternal rewrites the source of an answer.
func (f *family) fromExternal() rule {
	key, _ := f.door(f.source, sourcePort)
	return join(key, f.mapped(externalSet), f.write(f.source))
}

// mapped replaces the key in the registers by the address that a map has for it.
func (f *family) mapped(base string) rule {
	return say(&expr.Lookup{SourceRegister: reg, SetName: f.named(base), IsDestRegSet: true, DestRegister: reg})
}

// write puts an address into the header and mends the checksums, also that of
// TCP and UDP, which covers the addresses (RFC 9293 section 3.1). Not made by the
// library: it leaves the flag for the latter out where the header itself has no
// checksum, as that of IPv6.
func (f *family) write(offset uint32) rule {
	var a attributes
	a.text(unix.NFTA_EXPR_NAME, "payload")
	a.nest(unix.NFTA_EXPR_DATA, func() {
		a.number(unix.NFTA_PAYLOAD_SREG, reg)
		a.number(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER)
		a.number(unix.NFTA_PAYLOAD_OFFSET, offset)
		a.number(unix.NFTA_PAYLOAD_LEN, f.size)
		if f.checksum {
			a.number(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_INET)
			a.number(unix.NFTA_PAYLOAD_CSUM_OFFSET, f.checksumOffset)
		}
		a.number(unix.NFTA_PAYLOAD_CSUM_FLAGS, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR)
	})
	return rule{expression(a)}
}

// setMark sets the mark to (mark & keep) with these bits set.
func setMark(keep, bits uint32) rule {
	return say(&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native(keep &^ bits), Xor: native(bits)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg})
}

// labelling labels the connection of a marked packet and takes the mark away.
func labelling() rule {
	return join(
		say(&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
			&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native(internalMark), Xor: native(0)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: native(0)}),
		setMark(math.MaxUint32&^internalMark, 0),
		say(&expr.Immediate{Register: reg, Data: internalLabel[:]},
			&expr.Ct{Key: expr.CtKeyLABELS, SourceRegister: true, Register: reg}),
	)
}

// labelled matches packets of such a connection.
func labelled() rule {
	return say(&expr.Ct{Key: expr.CtKeyLABELS, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 16, Mask: internalLabel[:], Xor: make([]byte, 16)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 16)})
}
