// Package filter decides in the kernel what comes in to the addresses that
// Holdfast serves: one nftables table of its own, ahead of kube-proxy's DNAT.
//
// It touches no table but its own.
package filter
