// Package bgp advertises a node's routes to its routers. It runs one GoBGP
// server, which only dials: nothing listens, so no privilege is needed.
//
// Callers decide which peer receives which routes; this package applies the whole
// desired set. A path in GoBGP carries one private large community (a tag) for
// each peer that receives it, and nothing else. An export policy replaces the
// tag by that peer's attributes: communities, local preference, MULTI_EXIT_DISC and more of AS_PATH.
// A peer receives no path without a tag. The policy and not the path sets the
// communities, because GoBGP itself obeys well-known communities on a path,
// and NO_EXPORT (RFC 1997) is meant for the router.
//
// The package accepts no routes and decides nothing about addresses. It may
// import the vocabulary, GoBGP, rtnetlink and Prometheus. It knows no Kubernetes,
// only reads addresses from the kernel and writes no route to it, and leaves the parsing of everything a router sends to GoBGP.
package bgp
