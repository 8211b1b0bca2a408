// Package egress makes the connections that pods open to addresses outside of the cluster leave with the address of
// their Service. It is the data plane of one node.
//
//	t := egress.New(egress.Config{Log: log, Links: links, Changed: kick})
//	go t.Run(ctx)                                          // repairs the tables, and follows the links of pods
//	t.Set(egress.Desired{Egress: e, Nodes: nodes, Speakers: macs})
//	t.Faults()                                             // pods that have no right, and why
//
// Several nodes have pods of one Service, but answers to the Service's address reach only its owner. So the pod's node
// translates to a port of its slice: 4,096 ports of the address that belong to one node. Whichever node gets an answer
// sends it on to the node of the slice, by the port alone. It keeps no state, so connections survive when the address
// moves and when its owner loses power.
//
//	pod ──► its node: source = address, port of the node's slice ──► router ──► partner
//	pod ◄── its node ◄── owner: port of another node's slice, dup  ◄── router ◄── partner
//
// There is one nftables table for each family, `ip holdfast-egress` and `ip6 holdfast-egress`, because dup does not
// work in the family inet. There are no tables while a node has nothing to do.
//
//	pass       (prerouting, -299)   an answer, an echo reply or an ICMP error for a port of another node's slice,
//	                                from no MAC in the set speakers ──► dup to that node, drop here
//	steer      (prerouting, -90)    of a connection that a pod opened to outside, new or translated, if the default
//	                                route does not lead over the link of its address ──► mark of the way
//	forward    (forward, -10)       ──► no mark;
//	                                of a translated connection, but not from the pod of its source ──► refuse,
//	                                  or not by the link of its address ──► drop
//	                                new, from a source without a right, leaves by an uplink ──► refuse
//	translate  (postrouting, 90)    new, from a pod with a right, by the link of its address ──► address and slice
//
// The chain pass comes before conntrack and before the guard chain of the packet filter (-149), which would drop such
// answers. It comes after defragmentation (-400), so fragments have a port too: the copy is fragmented again. The chain
// translate comes before the source NAT of network plugins and of kube-proxy (100): the first rule that translates a
// connection decides, for its whole life.
//
// # Rights
//
// A right consists of the link of the pod, the pod's address, and the link that packets leave by. The kernel counts
// the indexes of links up, so a right ends together with the pod. A host route of the pod's
// address names its link, as Calico, kindnet and the ptp plugin set it. Behind a bridge, it is the port whose peer has
// the address: the kernel lists the peer's addresses although they are in the pod's network namespace. For IP a bridge
// is one link, so a third table, `bridge holdfast-egress`, marks the packets of pods that come from their own port
// (0x20). If two links claim an address, neither gets a right.
//
// Conntrack remembers a translation longer than a right. So the chain forward also checks the packets of translated
// connections: the entry of a former pod does not serve the next pod with its address. Connections that a pod began
// before its right was known are deleted, so that the pod opens them again.
//
// A source that is closed, or whose link is unknown, cannot open connections to outside of the cluster. They are
// refused at once, by a TCP reset or an ICMP error. Its older connections go on.
//
// Inside of the cluster are Desired.Inside, the nodes, all egress addresses, link-local, multicast and loopback
// addresses, and the prefixes that the main routing table sends through another node. Nothing is translated to them,
// nor to an address that kube-proxy translated, nor on links that neither may announce nor have a default route, such
// as the tunnels of network plugins.
//
// # Ways
//
// The nodes' default route may lead over another link than the address's, which then has a way: a default route of its
// own, which the plan takes from what the node has (Desired.Ways). Up to three ways of a family have a number. For each
// there are two routing rules and a table, whose protocol is 72:
//
//	32700: fwmark 0x4/0xc lookup main suppress_prefixlength 1  # 3 for IPv6
//	32701: fwmark 0x4/0xc lookup 7301                          # and so on: 0x8 has 7302, 0xc has 7303
//
// So specific routes hold, and only the default route is another one; 0.0.0.0/1 with 128.0.0.0/1, and 2000::/3, count
// as default routes. The marks live from after the destination NAT until after the choice of the route. Rules for the
// pods' addresses in their place (`from POD`) would need no marks, but would also turn what kube-proxy translated,
// packets to nodes beyond the default route, and answers to clients of other links; and the kernel walks all rules for
// each packet.
//
// Older connections of a source never leave by another link: while their way is missing their packets are dropped. New
// ones take the main table then, and are refused as on a wrong link. Rules and routes of other programs with these
// priorities and in these tables stay, and close the sources that need them. So does a rule that comes first and leads
// to another link.
//
// # Limits
//
// A node has at most 4,096 connections from one address to one port of a partner. The kernel drops the first packet of
// the next one without an error; Exhausted reports it within 10 seconds or more.
//
// Pods without a veth, as with macvlan and SR-IOV, get no right, and pods of eBPF data paths that bypass the packet
// filter are not translated. The first connections of a new pod, until its address is known, leave with the address of
// the node, and are deleted then. Nodes without a speaker neither translate nor pass answers on. TCP, UDP and echo
// requests are translated, and all else is refused.
//
// The package takes no decisions: the plan chooses addresses, slices, ways and closed sources before Set. It changes no
// other table.
package egress
