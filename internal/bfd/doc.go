// Package bfd tells within a fraction of a second that a router is not reached any more, by Bidirectional Forwarding
// Detection: asynchronous mode (RFC 5880), over one hop (RFC 5881) or several (RFC 5883).
package bfd
