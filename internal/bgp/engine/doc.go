// Package engine is the process that speaks BGP with one router, for the speaker that starts it. It runs one GoBGP server
// with one peer, which only dials: nothing listens, so no privilege is needed.
//
// What a router sends is parsed here and nowhere else, by GoBGP: v4, because the v3 line lacks fixes for several remote
// crashes. A message that crashes GoBGP ends this process, whose peer is then the one to blame, and nothing else.
//
// The attributes of a route stand on its path, since GoBGP itself obeys none of the communities that may be there, such as
// NO_EXPORT (RFC 1997), which are meant for the router. The policies keep out what the router sends.
//
// The package decides nothing about addresses and peers. It reads addresses from the kernel and writes no route to it.
package engine
