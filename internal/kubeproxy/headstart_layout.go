package kubeproxy

import (
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

const headStartTable = "holdfast-headstart"

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

// startTimeout is how long the kernel keeps what is not renewed: longer than any speaker wants it.
const startTimeout = 2 * time.Minute

// kubeProxyMark is the mark by which kube-proxy knows connections to masquerade; its KUBE-FORWARD chain accepts them too.
const kubeProxyMark = 1 << 14

// startKey returns the key of a frontend; false if it is none.
func startKey(s lb.Start) (f nft.Family, key string, ok bool) {
	number, ok := nft.ProtocolNumber(s.Protocol)
	for _, f := range nft.Families() {
		if a := s.Address.Unmap(); f.Has(a) && ok && len(s.Endpoints) > 0 {
			return f, nft.PortKey(a, number, s.Port), true
		}
	}
	return nft.Family{}, "", false
}

func headStartLayout() *nft.Layout {
	var sets []nft.Set
	lead := nft.Chain{Name: "lead", Kind: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: behindDNAT}
	back := nft.Chain{Name: "masquerade", Kind: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: behindMasquerade}
	for _, f := range nft.Families() {
		slot := append(f.PortType(), nft.Mark)
		sets = append(sets,
			nft.Set{Name: endpointsMap + f.Suffix, Key: slot, Flags: unix.NFT_SET_MAP | unix.NFT_SET_TIMEOUT, Data: f.Address, Timeout: startTimeout},
			nft.Set{Name: portsMap + f.Suffix, Key: slot, Flags: unix.NFT_SET_MAP | unix.NFT_SET_TIMEOUT, Data: nft.Port, Timeout: startTimeout},
			nft.Set{Name: masqueradeSet + f.Suffix, Key: f.PortType(), Flags: unix.NFT_SET_TIMEOUT, Timeout: startTimeout})
		lead.Rules = append(lead.Rules, markStart(f), translate(f))
		// By the original destination. No packet comes here whose source was translated before.
		back.Rules = append(back.Rules, slices.Concat(f.Is(), f.Masquerade(masqueradeSet)))
	}
	chains := []nft.Chain{lead, lead.At("lead-output", unix.NF_INET_LOCAL_OUT), back}
	return nft.NewLayout(nft.Table{Family: unix.NFPROTO_INET, Name: headStartTable}, sets, chains)
}

// markStart has kube-proxy masquerade a connection to a frontend that asks for it.
func markStart(f nft.Family) nft.Rule {
	key, _ := f.LoadFrontend()
	return slices.Concat(f.Is(), key, nft.Expr(
		&expr.Lookup{SourceRegister: nft.Reg, SetName: masqueradeSet + f.Suffix},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: nft.Reg},
		&expr.Bitwise{SourceRegister: nft.Reg, DestRegister: nft.Reg, Len: 4, Mask: nft.Native(^uint32(kubeProxyMark)), Xor: nft.Native(kubeProxyMark)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: nft.Reg},
	))
}

// translate leads a connection to the endpoint in one of the frontend's slots.
func translate(f nft.Family) nft.Rule {
	key, slot := f.LoadFrontend()
	return slices.Concat(f.Is(), key, nft.Expr(&expr.Numgen{Register: slot, Modulus: slots, Type: unix.NFT_NG_RANDOM}), f.Lead(endpointsMap, portsMap))
}
