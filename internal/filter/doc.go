// Package filter filters packets to the addresses that Holdfast serves, with one
// nftables table, `inet holdfast`, ahead of kube-proxy's DNAT.
//
//	Set ──► image ──► nft.Owned ──(difference)──► one transaction ──► nf_tables
//
// The rules check every packet to a served address, not only the first of a
// connection, so that the removal of a range ends the connections from it:
//
//	guard (prerouting)  reply of a connection ──► accept
//	                    map frontends: address . protocol . port ──► accept, or the
//	                        chain of the frontend's profile: deny, allow, limits
//	                    guarded address, but no frontend ──► accept to a pod of this node
//	                        by the node's own route, icmp, closed
//	ping (prerouting)   redirects echo requests to the node itself; connections to such a
//	                        pod keep their destination
//	forward, input      address of a frontend without kube-proxy's DNAT ──► drop
//	internal, external  traffic from within the cluster, see internal.go
//
// The set sources holds pairs of a list and a source prefix, and the maps allow and deny lead from a frontend to its
// lists: a list enters the kernel once, for however many frontends. Frontends with the same prefix lengths and limits
// share a profile, whose chain looks a source up once for each prefix length. 10,000 frontends with 5 ranges each take
// the kernel 0.1 to 0.3 s and 13 MiB, one more or less 0.1 ms, and a packet 1.1 to 1.3 µs, of which the look-up of the
// list is 0.04 µs for each prefix length that is tried. docs/evidence/rejected.md has other designs.
//
// During a commit a packet may see the new sets with an old verdict, and the reverse. Neither admits a packet that both
// filters refuse: lists do not change, the frontends of a replaced list find the new one in sets of the other parity
// (odd), a packet whose list is gone is refused, and a jump to a chain without rules continues with the rules for
// closed ports.
//
// A frontend that is beyond the bound of all lists is closed, and no others.
//
// Limits: the count of a connection limit starts again when the limit changes;
// rate limits cover 65,535 sources at a time, and do not apply to further ones;
// an IPv6 source is a /64 to a rate limit. If several addresses share a port of
// a ClusterIP, traffic from within the cluster bypasses the ranges of the first only.
//
// The package takes no decisions: the plan decides on frontends and ranges before
// Set. It changes no other table, and its table stays in force when the process
// ends or is killed.
package filter
