// Package link knows the links (network interfaces) of this node: a snapshot of
// them as values, and a kick when it changes.
//
// Events of rtnetlink only wake the Monitor; it then reads the whole state, so
// that a lost or misread event costs nothing. The package only reads: it never
// changes a link or an address, and it does not know what is announced.
package link
