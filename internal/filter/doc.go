// Package filter decides in the kernel what comes in to the addresses that
// Holdfast serves: one nftables table of its own, `inet holdfast`, ahead of
// kube-proxy's DNAT.
//
//	Set ──► image ──(differences)──► one transaction ──► nf_tables
//	                                                        │ notifications
//	Run: watch ──(damage)──► heal ◄─────────────────────────┘
//
// Every packet to a served address is judged, not only the first of a
// connection, so that a range that is withdrawn ends what came from it:
//
//	guard (prerouting)  answer on a connection ──► go on
//	                    frontends: address . protocol . port ──► go on, or the
//	                        chain of the frontend's profile: deny, allow, limits
//	                    guarded address, but no frontend ──► icmp, closed
//	ping (prerouting)   echo requests to the node itself, which answers them
//	forward, input      the address of a frontend that kube-proxy did not take ──► drop
//	internal, external  traffic from within the cluster, see internal.go
//
// Who may come to a frontend is in two hash sets of frontend and prefix. A profile,
// which frontends share, looks a source up once for each prefix length that its
// frontends' lists use. What 10,000 frontends with 5 ranges each cost the kernel, on two
// busy cores, beside two other designs that do nothing but look up sources:
//
//	                                 full       one more  one less  memory   per packet
//	hash sets (with all else here)   0.1-0.3 s    0.1 ms    0.1 ms   13 MiB  1.1-1.3 µs
//	one concatenated interval set    0.4 s          3 ms     40 ms   12 MiB      2.5 µs
//	a chain and a set for each frontend   15 s         33 ms     10 ms  177 MiB      0.6 µs
//
// A packet on its way may see sets of after with a verdict of before, and the
// reverse. It never comes in by that: lists that a frontend no longer has are
// deleted in a later transaction, new lists have keys of their own (odd), and
// who is led to a chain that has no rules yet ends where nobody comes in.
//
// Bounds: the count of a connection limit starts again when the limit changes;
// 65,535 sources are remembered for rate limits, those beyond are not bounded;
// to a rate limit an IPv6 source is a /64. Of several addresses of one port of
// a ClusterIP, the first is the one that traffic from within goes past the
// ranges for.
//
// The package decides nothing: which frontends there are, and for whom, is decided
// before Set. It touches no table but its own, and that one stays in force when
// the process ends, however it ends.
package filter
