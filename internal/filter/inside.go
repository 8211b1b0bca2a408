package filter

import (
	"slices"
	"strings"

	"github.com/google/nftables/expr"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// nameSize is the size of a link's name in the kernel, with at least one octet of zero at its end (IFNAMSIZ).
const nameSize = 16

// insideLinks returns the elements of insideSet: the names of links, and the empty one. Names and beginnings of names
// are intervals of one set, so that one lookup judges a link.
func insideLinks(names []string) nft.Elements {
	var intervals nft.Elements
	for _, name := range append([]string{""}, names...) {
		beginning, isPrefix := strings.CutSuffix(name, "*")
		if len(beginning) >= nameSize || isPrefix && beginning == "" {
			continue // no link has this name; every link has that one
		}

		after := []byte(beginning)
		if !isPrefix {
			after = padName(beginning)
		}

		after[len(after)-1]++
		intervals.Put(insideSet, string(padName(beginning)), string(padName(string(after))))
	}

	return merged(intervals)
}

func padName(name string) []byte { return append([]byte(name), make([]byte, nameSize)...)[:nameSize] }

// notServed matches packets to an address that no Service has.
func (f *family) notServed() nft.Rule {
	return nft.Expr(
		f.Load(f.Destination, reg),
		&expr.Lookup{SourceRegister: reg, SetName: f.named(addressesSet), Invert: true},
	)
}

// toPod matches packets to an address that no Service has and that this node's own routes lead to a pod's link. No
// object says so: neither a Node nor an EndpointSlice nor a Service can. Without a route the kernel leaves the name
// empty, and insideSet has the empty name too.
func (f *family) toPod() nft.Rule {
	return slices.Concat(f.notServed(), nft.Expr(
		&expr.Fib{Register: reg, ResultOIFNAME: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
		&expr.Lookup{SourceRegister: reg, SetName: insideSet}))
}

// keepPod leaves the destination of connections to such pods as it is. After that no other table translates it: a
// Service that has a pod's address in spec.externalIPs gets none of them.
func (f *family) keepPod() nft.Rule {
	return slices.Concat(f.Match(), f.destinationIn(guardedSet), f.toPod(), nft.Expr(f.Load(f.Destination, reg),
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.Proto), RegAddrMin: reg}))
}
