// Package bgp advertises a node's routes to its routers. It holds one GoBGP
// server, which only dials: nothing listens, so nothing needs a privilege.
//
// Which peer is told what is decided elsewhere; here the whole desired set is
// made true. A path in GoBGP carries one private large community (a tag) for
// each peer that is told of it, and nothing else. An export policy turns the
// tag into what that peer is told: communities, local preference, no tag.
// Without a tag a peer is told nothing. Communities are given by the policy and
// not by the path because GoBGP obeys well-known communities on a path itself,
// and NO_EXPORT (RFC 1997) is meant for the router.
//
// The package takes no route from anyone and decides nothing about addresses.
// It may import the vocabulary, GoBGP and Prometheus; it knows no Kubernetes,
// writes no route to the kernel, and parses no foreign byte itself: what a
// router sends is read by GoBGP only.
package bgp
