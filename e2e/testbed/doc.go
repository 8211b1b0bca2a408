// Package testbed is what the demo, the benchmarks and the end-to-end tests
// stand on: a cluster with hosts outside it, Holdfast installed by its chart,
// an application to reach, and eyes on both sides of the network.
//
// It knows a cluster by the interface Cluster only. Nothing here decides what is
// right; that is the business of the callers.
package testbed
