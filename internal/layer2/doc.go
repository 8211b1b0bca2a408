// Package layer2 makes this node answer for addresses that none of its links
// holds: ARP (RFC 826, RFC 5227) for IPv4, Neighbor Discovery (RFC 4861) for IPv6.
//
// A Responder is told by Set which addresses to answer and on which links. Per
// link in use it holds a port: one packet socket for each family. A packet
// socket, also for Neighbor Discovery, because a solicitation sent to the
// announced address itself (the unicast probe of a neighbour that wants to know
// whether we are still there, RFC 4861 section 7.3) belongs to no interface and
// reaches no other kind of socket.
//
//	Set ──► table (atomic) ◄── reader per socket ──► answer
//	  └kick► Run: ports, schedule of announcements, multicast groups
//	  └plan► audit ◄── ears: what other speakers announce
//
// Readers take no lock: the table and each port's link are snapshots behind
// atomic pointers. Everything else belongs to the goroutine of Run, and the audit to one of its own.
//
// Ask asks single machines by unicast whether they answer for an address, on sockets of
// its own that live no longer than the question; Foreign names machines that are no
// speakers, to be asked whether a link works at all.
//
// The package decides nothing: who announces an address is decided before Set.
// It adds no address to any link, changes no sysctl and no neighbour entry, and
// knows nothing of Services or nodes.
package layer2
