// Package relay keeps TCP connections alive when an address moves from a node
// that lives to this one: the second chance that GitHub's GLB gives a connection, in the
// kernel.
//
// Whoever takes an address over knows none of the connections that the former
// owner serves. kube-proxy would start each of them again in the middle, with
// another endpoint or another port, and the endpoint would reset it. So the new owner
// hands such packets on, as they are, to the former owner, whose kernel knows
// them; that one answers the client directly. One nftables table of each family,
// `ip holdfast-relay` and `ip6 holdfast-relay` (dup knows no common one):
//
//	errors       (prerouting, -150)  ICMP errors about no connection of this node
//	connections  (prerouting, -148)  TCP without SYN: connection new, or FIN or RST and connection invalid
//	    to an address in the map relays, from no MAC in the set speakers
//	        ──► dup to the former owner on its link, drop here
//
// A SYN begins a connection and is served here; what follows on it is known
// here. Conntrack calls invalid the end of a connection that it does not know, and
// also what lies outside of the window of one that it knows. A former owner might take such data
// up as a connection of its own, and have an endpoint reset it; FIN and RST it does not
// take up. Where nf_conntrack_tcp_loose is 0 when the speaker starts, conntrack calls all invalid that it does not
// know, and all that is invalid is relayed: nodes set up alike take none of it up.
//
// The packets of a connection are relayed behind the guard of the packet
// filter (-149), so that ranges hold here and there, and ahead of every DNAT. Errors
// go ahead of it: the guard knows errors about its own connections only, and it is
// the former owner's that decides about these. Path MTU discovery lives on them.
//
// What comes from a speaker's MAC is never relayed, so that nothing goes round:
// each packet is handed on once; were a MAC not known, its time to live would end it. The
// kernel takes one from that (nf_dup_ipv4.c), forbids fragments of the copy, does not
// track it, and sends it as any of its own: segments that it had merged are parted again.
//
// The members of relays have a timeout in the kernel, which Run renews. So a
// speaker that restarts or dies leaves relays that work, and one that never returns
// leaves none for long. Tables of the same layout are taken over as they are.
//
// Bounds: TCP alone, for in UDP nothing tells the middle of a flow from its
// beginning. Each address has one former owner: when it moves again, the connections of
// the last but one are lost. A client behind a router that is itself a node
// of the cluster gets no second chance.
//
// The package decides nothing: who the former owner is, and whether it lives, is decided
// before Set. It touches no table but its own.
package relay
