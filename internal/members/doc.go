// Package members knows which speakers there are and which of them are alive,
// from the speakers themselves, so that it does not depend on the API server. It
// decides nothing about addresses.
//
// Who exists comes from gossip (hashicorp/memberlist), which also carries what each speaker tells of its
// node, and from the list of the speakers' pods. Who is alive comes from heartbeats
// (internal/heartbeat). Gossip that goes on hearing a node whose heartbeats never
// come shows that their port is blocked; it is believed only where they never came.
//
// Of the keys all are accepted, and the first is sent with; internal/rotation says which
// key that is at what time.
package members
