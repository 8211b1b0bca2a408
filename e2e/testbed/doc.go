// Package testbed is the base of the demo, the benchmarks and the end-to-end
// tests: a cluster with hosts outside it, Holdfast installed by its chart, an
// application to reach, and observers on both sides of the network.
//
// It uses a cluster through the interface Cluster only. It measures; the callers
// decide which results are right.
package testbed
