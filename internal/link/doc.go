// Package link provides the links (network interfaces) of this node as a snapshot
// of values, and kicks when it changes.
//
// Events of rtnetlink only wake the Monitor, which then reads the whole state, so
// a lost event does no harm. The package only reads: it never changes a link or an
// address, and it does not know what is announced.
package link
