// Package bgp advertises a node's routes to its routers. Each peer has an engine, a process of its own that speaks BGP with
// that router alone (package engine): GoBGP had many remote crashes, and a router that crashes an engine disturbs nothing
// else. This package supervises the engines. A peer whose session falls, or whose engine dies, again and again rests ever longer.
//
// Callers decide which peer receives which routes. An engine is sent what changed, and a new one everything.
//
// The package accepts no routes and decides nothing about addresses. It may import the vocabulary, its own parts,
// internal/child and Prometheus. It knows no Kubernetes and, so that no router's message is parsed in the speaker's process, no GoBGP.
package bgp
