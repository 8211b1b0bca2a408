// Package relay keeps TCP connections alive when an address moves from a living node to this one. The idea is the
// second chance of GitHub's GLB (https://github.com/github/glb-director), here in the kernel.
//
//	r := relay.New(relay.Config{Log: log, Links: links})
//	go r.Run(ctx)                         // repairs the tables, and finds relays that ended
//	r.Set(relay.Desired{Relays: relays})  // relays exactly these addresses
//
// The new owner of an address has no conntrack entries for the connections of the former owner. kube-proxy would treat
// their packets as new connections, with another endpoint or another port, and the endpoint would reset them. So the
// new owner sends such packets unchanged to the former owner, which has the entries and answers the client directly.
// There is one nftables table for each family, `ip holdfast-relay` and `ip6 holdfast-relay`, because dup does not work
// in the family inet:
//
//	errors       (prerouting, -150)  ICMP errors about no connection of this node
//	connections  (prerouting, -148)  TCP without SYN: connection new, or FIN or RST and connection invalid
//	    to an address in the set used and the map relays, from no MAC in the set speakers
//	        ──► renew the address in used, unless FIN or RST; dup to the former owner on its link, drop here
//
// # Which packets are relayed
//
// A SYN opens a connection. This node serves that connection with all of its later packets. Conntrack's state invalid
// covers FIN and RST of unknown connections, and segments outside the window of a known connection. The former owner
// could pick up such data segments as a new connection, and an endpoint would reset it. It does not pick up FIN and
// RST.
//
// An address may come back within two minutes (nf_conntrack_tcp_timeout_time_wait), while conntrack still has ended
// connections. A connection of the former owner may have the ports of an ended one: all its segments would be invalid.
// kubeproxy.Sweeper deletes such entries when a relay begins.
//
// The chain connections comes after the guard chain of the packet filter (-149), so the ranges of both nodes apply, and
// before every DNAT. The chain errors comes before the guard chain, which admits ICMP errors about known connections
// only: the former owner's guard decides on these errors. Path MTU discovery depends on them.
//
// Packets from a speaker's MAC are never relayed. So each packet is relayed once, and loops are impossible. If a MAC is
// unknown, the time to live ends the loop. In the copy the kernel decrements the time to live (nf_dup_ipv4.c) and sets
// the don't-fragment bit. It does not track the copy, and sends it as a packet of its own: segments that GRO merged are
// split again.
//
// # When a relay ends
//
// A relay ends when no segment has used it for the idle time: its address then expires in the set used. Packets renew
// the address, not the speaker. So relays outlive a speaker that restarts or dies, as long as they are used. FIN, RST
// and ICMP errors do not renew it: scans and late packets would keep relays without connections. An ended relay stays
// in the map relays. So the next speaker, which adopts tables of the same layout, does not add it again as a missing
// one. A relay begins again when Set names it with another Start.
//
// An idle node does not read the tables. The kernel reports changes by other programs, but not addresses that expire:
// for these, Run lists the tables three times in an idle time.
//
// # Limits
//
// TCP only, because UDP does not show whether a packet is the first of a flow. At most 65,535 addresses of a family at
// once, the kernel's limit for a set that packets renew. Each address has one former owner: when it moves again, the
// connections of the owner before that are lost. Connections through a router that is itself a node of the cluster are
// not relayed. No connection is relayed where nf_conntrack_tcp_loose is 0: every segment is invalid to conntrack.
//
// The package takes no decisions: the plan chooses the former owner, and judges its health, before Set. It changes no
// other table.
package relay
