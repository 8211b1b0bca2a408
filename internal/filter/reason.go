package filter

import (
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// reason says why a packet was not let in.
type reason uint32

const (
	// undeclared: no Service declares the port.
	undeclared reason = iota + 1
	// sourceRange: the source is not among those that may come, or among those that may not.
	sourceRange
	// connectionLimit: there are as many connections as there may be.
	connectionLimit
	// rateLimit: one source opens connections, or asks for echoes, too often.
	rateLimit
	// noEndpoint: externalTrafficPolicy: Local, and none of the endpoints is here.
	noEndpoint
	// unserved: kube-proxy does not serve the port.
	unserved

	lastReason = unserved
)

var reasonNames = [...]string{"", "undeclared", "source", "connections", "rate", "endpoint", "unserved"}

// String returns the reason as chain names, metrics and logs have it.
func (r reason) String() string { return reasonNames[r] }

// reasons returns those that have a chain which drops for them.
func reasons() []reason { return []reason{sourceRange, connectionLimit, rateLimit, unserved} }

// countClosed counts a packet that came to no frontend.
func (f *family) countClosed(r reason) nft.Rule {
	// An immediate is at most 16 bytes.
	var load nft.Rule
	key := []byte(f.noFrontend(r))
	for i := 0; i < len(key); i += 16 {
		load = append(load, nft.Expr(&expr.Immediate{Register: reg + uint32(i/4), Data: key[i:min(i+16, len(key))]})...)
	}
	return slices.Concat(load, f.in(dropsSet))
}

// noFrontend is the key that count counts by.
func (f *family) noFrontend(r reason) string {
	return string(append(make([]byte, 4*(f.words()+2)), nft.Native(uint32(r))...))
}

// logGroup is the group of NFLOG that drops are logged to, and logPerSecond how many at most.
const (
	logGroup     = 0x4846
	logPerSecond = 10
	logSnapshot  = 128
)

// countAndLog counts a packet that a frontend refuses, and logs it where the frontend asks for that.
func (f *family) countAndLog(r reason, log bool) []nft.Rule {
	key, next := f.loadFrontend()
	rules := []nft.Rule{slices.Concat(key, nft.Expr(&expr.Immediate{Register: next, Data: nft.Native(uint32(r))}), f.in(dropsSet))}
	if log {
		rules = append(rules, slices.Concat(key, f.in(loggedSet), nft.Expr(perSecond(logPerSecond, false), &expr.Log{
			Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN, Group: logGroup, Snaplen: logSnapshot, Data: []byte(r.String()),
		})))
	}
	return rules
}

// newDropChain refuses without an answer.
func (f *family) newDropChain(r reason, log bool) nft.Chain {
	return nft.Chain{Name: f.named(dropChain + r.String()), Rules: append(f.countAndLog(r, log), drop())}
}

// newRefuseChain answers at once, so that the client turns elsewhere. A connection that is there already goes on:
// its endpoint may be draining.
func (f *family) newRefuseChain(log bool) nft.Chain {
	rules := append([]nft.Rule{slices.Concat(nft.Status(expr.CmpOpNeq, ipsConfirmed), accept())}, f.countAndLog(noEndpoint, log)...)
	return nft.Chain{Name: f.named(refuseChain), Rules: append(rules, rejections()...)}
}
