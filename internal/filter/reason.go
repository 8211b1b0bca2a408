package filter

import (
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// reason is why a packet was dropped.
type reason uint32

const (
	// undeclared: no Service declares the port.
	undeclared reason = iota + 1
	// sourceRange: the source is not in the allow list, or is in the deny list.
	sourceRange
	// connectionLimit: the frontend has reached its number of connections.
	connectionLimit
	// rateLimit: one source opens connections, or asks for echoes, too often.
	rateLimit
	// noEndpoint: externalTrafficPolicy: Local, and none of the endpoints is here.
	noEndpoint
	// unserved: kube-proxy does not serve the port.
	unserved
)

var reasonNames = [...]string{"", "undeclared", "source", "connections", "rate", "endpoint", "unserved"}

// String returns the reason's name in chain names, metrics and logs.
func (r reason) String() string {
	return reasonNames[r]
}

// reasons returns the reasons that have a drop chain.
func reasons() []reason {
	return []reason{sourceRange, connectionLimit, rateLimit, unserved}
}

// countClosed counts a packet that is to no frontend.
func (f *family) countClosed(r reason) nft.Rule {
	const maxImmediate = 16 // bytes
	var load nft.Rule
	key := []byte(f.noFrontend(r))
	for i := 0; i < len(key); i += maxImmediate {
		part := key[i:min(i+maxImmediate, len(key))]
		register := reg + uint32(i/4)
		load = append(load, nft.Expr(&expr.Immediate{Register: register, Data: part})...)
	}

	return slices.Concat(load, f.in(dropsSet))
}

// noFrontend returns the key by which countClosed counts: zeros for the frontend, and the reason.
func (f *family) noFrontend(r reason) string {
	frontend := make([]byte, 4*(f.Words()+2))
	return string(append(frontend, nft.Native(uint32(r))...))
}

// Drops are logged to a group of NFLOG, at a limited rate. The kernel copies the beginning of the packet, in bytes.
const (
	logGroup     = 0x4846
	logPerSecond = 10
	logSnapshot  = 128
)

// countAndLog counts a packet that a frontend refuses, and logs it if the frontend has LogDrops.
func (f *family) countAndLog(r reason, log bool) []nft.Rule {
	key := f.LoadFrontend()
	loadReason := nft.Expr(&expr.Immediate{
		Register: f.AfterPort(),
		Data:     nft.Native(uint32(r)),
	})
	count := slices.Concat(key, loadReason, f.in(dropsSet))
	if !log {
		return []nft.Rule{count}
	}

	writeLog := nft.Expr(perSecond(logPerSecond, false), &expr.Log{
		Key:     1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN,
		Group:   logGroup,
		Snaplen: logSnapshot,
		Data:    []byte(r.String()),
	})
	return []nft.Rule{count, slices.Concat(key, f.in(loggedSet), writeLog)}
}

// newDropChain returns the chain that drops packets for a reason.
func (f *family) newDropChain(r reason, log bool) nft.Chain {
	return nft.Chain{
		Name:  f.named(dropChain + r.String()),
		Rules: append(f.countAndLog(r, log), drop()),
	}
}

// newRefuseChain returns the chain that rejects new connections, so the client tries another node. Existing connections
// continue, because their endpoint may be draining. Traffic from within the cluster continues too: kube-proxy ignores
// externalTrafficPolicy for it, and sends it to the endpoints of all nodes.
func (f *family) newRefuseChain(log bool) nft.Chain {
	rules := []nft.Rule{
		slices.Concat(nft.Status(expr.CmpOpNeq, ipsConfirmed), accept()),
		slices.Concat(fromInside(), accept()),
	}
	rules = append(rules, f.countAndLog(noEndpoint, log)...)
	return nft.Chain{Name: f.named(refuseChain), Rules: append(rules, rejections()...)}
}
