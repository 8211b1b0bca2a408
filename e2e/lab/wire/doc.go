// Package wire is the plan of a test network, and the faults of its wires.
//
// It is plain values and text: hosts with their links, the addresses on three segments, and the nftables
// rules by which a switch drops frames. Whoever has the bridges, package lab or package kind, applies them.
package wire
