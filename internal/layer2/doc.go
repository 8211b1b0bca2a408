// Package layer2 makes this node answer for addresses that none of its links has,
// by ARP (RFC 826, RFC 5227) for IPv4 and Neighbor Discovery (RFC 4861) for IPv6.
//
//	r := layer2.New(layer2.Config{Log: log, Links: links, Gateways: gateways, Changed: kick, Refused: kick})
//	go r.Run(ctx)                                                // answers and announces
//	r.Set(layer2.Desired{Announcements: mine, Speakers: macs})   // answers for exactly these addresses
//	...
//	state := r.State()                                           // phases, conflicts and links of the addresses
//
// # Ports and sockets
//
// Each link that can announce has a linkPort before an address needs it: one packet socket for each family and one for
// the echo of speakers. Neighbor Discovery needs a packet socket too: a solicitation to the announced address itself
// (the unicast probe of RFC 4861 section 7.3) belongs to no interface, and no other kind of socket receives it.
//
//	Set ──► table (atomic) ◄── reader per socket ──► answer
//	  └kick► Run: ports, schedule of announcements, multicast groups
//
// Readers of ARP and Neighbor Discovery take no lock: the table and each port's link are snapshots behind
// atomic pointers. Everything else belongs to the goroutine of Run, whose state is the portKeeper.
//
// # Life of an address
//
// A new address is probed, if its announcement wants that, and then owned: this node answers questions for it and
// announces it. An address of Desired.Yield is handed over: this node answers until it hears the new owner. A claim by
// a foreign machine is a conflict: an owned address is defended, and an address that the machine had first is left to
// it on that link.
//
// # Questions
//
// Ask asks single machines by unicast whether they answer for an address, and speakers by their echo. WhoHas asks all
// machines on a link. ProbePort asks one for a TCP connection. Each opens sockets of its own, and closes them
// afterwards. Foreign lists foreign machines that can be asked to find out whether a link works at all.
//
// The package decides nothing: its caller decides which node announces an address. It must not add an address to a
// link, and must not change a sysctl or a neighbour entry. It knows nothing of Services or nodes.
package layer2
