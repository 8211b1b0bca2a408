// Package relay keeps TCP connections alive when an address moves from a living node
// to this one. The idea is the second chance of GitHub's GLB (https://github.com/github/glb-director),
// here in the kernel.
//
// The new owner of an address has no conntrack entries for the connections of the former
// owner. kube-proxy would treat their packets as new connections, with another endpoint or
// another port, and the endpoint would reset them. So the new owner sends such packets
// unchanged to the former owner, which has the entries and answers the client directly.
// There is one nftables table for each family, `ip holdfast-relay` and `ip6 holdfast-relay`,
// because dup does not work in the family inet:
//
//	errors       (prerouting, -150)  ICMP errors about no connection of this node
//	connections  (prerouting, -148)  TCP without SYN: connection new, or FIN or RST and connection invalid
//	    to an address in the set used and the map relays, from no MAC in the set speakers
//	        ──► begin its time in used again, unless FIN or RST; dup to the former owner on its link, drop here
//
// A SYN opens a connection, and this node serves it with all of its later packets. Conntrack's
// state invalid covers FIN and RST of unknown connections, and segments outside the window of
// a known connection. The former owner could pick up such data segments as a new connection,
// and an endpoint would reset it; it does not pick up FIN and RST.
//
// Where an address comes back within two minutes (nf_conntrack_tcp_timeout_time_wait), conntrack still has ended
// connections, and every segment of a connection of the former owner that has the ports of such a connection would be
// invalid. kubeproxy.Sweeper deletes them when a relay begins.
//
// The chain connections is behind the guard chain of the packet filter (-149), so that the ranges of
// both nodes apply, and ahead of every DNAT. The chain errors is ahead of the guard chain, which admits
// ICMP errors about known connections only: the former owner's guard decides on these errors. Path MTU
// discovery depends on them.
//
// Packets from a speaker's MAC are never relayed, so that each packet is relayed once and loops are
// impossible; if a MAC is unknown, the time to live ends the loop. The kernel decrements that in
// the copy (nf_dup_ipv4.c), sets its don't-fragment bit, does not track it, and sends it as a packet
// of its own: segments that GRO merged are split again.
//
// A relay ends when no segment used it for the idle time: its address then expires in the set used. Packets renew that,
// and not the speaker. So the relays of a speaker that restarts or dies work as long as they are used. FIN, RST and
// ICMP errors do not renew it, since scans and late packets would keep relays without connections. What ended stays in
// the map relays. So the next speaker, which adopts tables of the same layout, does not take it for one that is
// missing. A relay begins again when Set names it with another Start.
//
// Nothing reads the tables while nothing happens. The kernel tells of changes by others, though not of addresses that
// expire: Run lists the tables for that from time to time.
//
// Limits: TCP only, because UDP does not show whether a packet is the first of a flow. 65,535 addresses of a family at
// once, the kernel's limit of a set that packets renew. Each address has one former owner: when it moves again, the
// connections of the owner before that are lost. Connections through a router that is itself a node of the cluster are
// not relayed, nor any where nf_conntrack_tcp_loose is 0: conntrack calls each of their segments invalid.
//
// The package takes no decisions: the former owner and its health are decided before Set. It changes no
// other table.
package relay
