package filter

import (
	"slices"
	"strings"

	"github.com/google/nftables/expr"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// nameSize is the size of a link's name in the kernel, in bytes, with at least one zero at its end (IFNAMSIZ).
const nameSize = 16

// insideLinks returns the elements of insideSet: the names of links, and the empty name. Names and prefixes of names
// are intervals of one set, so one lookup decides.
func insideLinks(names []string) nft.Elements {
	var intervals nft.Elements
	for _, name := range append([]string{""}, names...) {
		first, isPrefix := strings.CutSuffix(name, "*")
		tooLong := len(first) >= nameSize
		matchesAll := isPrefix && first == ""
		if tooLong || matchesAll {
			continue
		}

		// The interval ends before the next name, or before the next prefix.
		next := []byte(first)
		if !isPrefix {
			next = padName(first)
		}

		next[len(next)-1]++

		intervals.Put(insideSet, string(padName(first)), string(padName(string(next))))
	}

	return intervals.Merged()
}

// padName pads a name with zeros to nameSize.
func padName(name string) []byte {
	return append([]byte(name), make([]byte, nameSize)...)[:nameSize]
}

// notServed matches packets to an address that no Service has.
func (f *family) notServed() nft.Rule {
	return nft.Expr(
		f.Load(f.Destination, reg),
		&expr.Lookup{
			SourceRegister: reg,
			SetName:        f.named(addressesSet),
			Invert:         true,
		},
	)
}

// toPod matches packets to a pod of this node: no Service has the address, and the node's own routes lead to a pod's
// link. No object of the API server has this fact. Without a route the kernel leaves the link's name empty, which
// insideSet holds too, so the rule tests for it.
func (f *family) toPod() nft.Rule {
	return slices.Concat(f.notServed(), nft.Expr(
		&expr.Fib{
			Register:      reg,
			ResultOIFNAME: true,
			FlagDADDR:     true,
		},
		&expr.Cmp{
			Op:       expr.CmpOpNeq,
			Register: reg,
			Data:     make([]byte, 4),
		},
		&expr.Lookup{SourceRegister: reg, SetName: insideSet},
	))
}

// keepPod translates the destination of connections to this node's pods to itself. After that no other table translates
// it: a Service that has a pod's address in spec.externalIPs gets none of these connections.
func (f *family) keepPod() nft.Rule {
	keepDestination := nft.Expr(
		f.Load(f.Destination, reg),
		&expr.NAT{
			Type:       expr.NATTypeDestNAT,
			Family:     uint32(f.Proto),
			RegAddrMin: reg,
		},
	)
	return slices.Concat(f.Match(), f.destinationIn(guardedSet), f.toPod(), keepDestination)
}
