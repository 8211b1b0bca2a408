// Package filter filters packets to the addresses that Holdfast serves, with one nftables table, `inet holdfast`,
// before kube-proxy's DNAT.
//
//	t := filter.New(log, kick)             // kick is called when Failed or Refused changes
//	go t.Run(ctx)                          // repairs the table, and logs drops
//	err := t.Set(filter.Desired{Filter: f, PodLinks: links})
//
//	Set ──► image ──► nft.Owned ──(difference)──► one transaction ──► nf_tables
//
// # Rules
//
// The rules check every packet to a served address, not only the first packet of a connection. So the removal of a
// range ends the connections from it:
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
// # Lists of sources
//
// The set sources holds pairs of a list and a source prefix. The maps allow and deny lead from a frontend to its lists.
// So a list enters the kernel once, however many frontends use it. Frontends with the same prefix lengths and limits
// share a profile, whose chain looks a source up once for each prefix length.
//
// 10,000 frontends with 5 ranges each take the kernel 0.1 to 0.3 s and 13 MiB. One frontend more or less takes 0.1 ms.
// A packet takes 1.1 to 1.3 µs, of which the look-up of the list is 0.04 µs for each prefix length.
// docs/evidence/rejected.md has other designs.
//
// A frontend whose lists would exceed the bound of the node is closed, and no others.
//
// # During a commit
//
// A packet may meet the new sets with an old verdict, and the reverse. No mixture admits a packet that both filters
// refuse. The content of a list does not change. Frontends whose list is replaced find the new list in the sets of the
// other parity (odd). A packet whose list does not exist is refused. A jump to a chain whose rules are not visible yet
// continues with the rules for closed ports.
//
// # Limits
//
// The count of a connection limit starts again when the limit changes. Rate limits cover 65,535 sources at a time, and
// do not apply to further sources. An IPv6 source is a /64 to a rate limit. If several addresses share a port of a
// ClusterIP, traffic from within the cluster bypasses the ranges of the first address only.
//
// The package takes no decisions: the plan decides on frontends and ranges before Set. It changes no other table, and
// its table stays in force when the process ends or is killed.
package filter
