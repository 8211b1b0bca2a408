// Package members knows which speakers there are and which of them are alive,
// from the speakers themselves, so that it does not depend on the API server. It
// decides nothing about addresses.
//
// Gossip (hashicorp/memberlist) and the list of the speakers' pods show who exists. Gossip also carries
// each speaker's metadata: what it says about its node. Heartbeats (internal/heartbeat) show who is alive. If gossip
// hears a node whose heartbeats do not come, their port is blocked; gossip decides only if they never came.
// Beside it members ask each other which addresses they own, where the wire may not tell.
//
// All keys are accepted, and the first one encrypts what is sent. internal/keyed decides which key
// is the first at what time.
package members
