// Package layer2 makes this node answer for addresses that none of its links has,
// by ARP (RFC 826, RFC 5227) for IPv4 and Neighbor Discovery (RFC 4861) for IPv6.
//
// Set gives a Responder the addresses to answer for and their links. For each link that can announce, before an address
// needs it, the Responder has a port: one packet socket for each family and one for the echo. Neighbor
// Discovery needs a packet socket too, because a solicitation to the announced
// address itself (the unicast probe by which a neighbour checks that we are still
// there, RFC 4861 section 7.3) belongs to no interface and reaches no other kind
// of socket.
//
//	Set ──► table (atomic) ◄── reader per socket ──► answer
//	  └kick► Run: ports, schedule of announcements, multicast groups
//
// Readers of ARP and Neighbor Discovery take no lock: the table and each port's link are snapshots behind
// atomic pointers. Everything else belongs to the goroutine of Run.
//
// Ask asks single machines by unicast whether they answer for an address, or speakers by their echo, on its own
// sockets, which live no longer than the question. Foreign lists foreign machines that
// can be asked to find out whether a link works at all.
//
// The package decides nothing: its caller decides which node announces an address.
// It adds no address to any link, changes no sysctl and no neighbour entry, and
// knows nothing of Services or nodes.
package layer2
