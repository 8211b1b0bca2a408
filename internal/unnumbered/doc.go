// Package unnumbered finds the routers of BGP peers that are named by a link and not by an address, which FRR calls BGP
// unnumbered: by router discovery (RFC 4861 section 6). A router on the link advertises itself, and the address that it does
// so from is where to dial. The router finds this node in the same way, so on these links this node sends Router
// Advertisements too. They have router lifetime 0 (RFC 4861 section 4.2) and no prefix: this node is no host's default
// router.
//
// Which router a link has, and when to send, is decided by pure functions. A Finder drives them by the clock and by one raw
// ICMPv6 socket for each link. It does not ask the kernel, which takes no notice of Router Advertisements where it
// forwards.
//
// Input is hostile. Nothing is read of an advertisement but that it is one: it must come from a link-local address over no
// hop (RFC 4861 section 6.1.2). How many packets are read in a time, how many routers are remembered and how often a
// solicitation is answered is limited. A flood does not replace a router with which BGP has a session. Whoever can send on the
// link can pose as its router, as with any other client of router discovery; a password of the session does not let him in.
//
// The package sends on no link that it is not given, and dials no machine.
package unnumbered
