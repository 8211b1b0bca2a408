// Package members knows which speakers there are and which of them are alive,
// from the speakers themselves, so that it does not depend on the API server. It
// decides nothing about addresses.
//
// Who exists comes from gossip (hashicorp/memberlist) and from the list of the
// speakers' pods. Who is alive comes from heartbeats (internal/heartbeat), which
// notice a loss in a fraction of a second; gossip, which needs one to three
// seconds, speaks where they tell nothing and vouches where their port alone is
// blocked. Gossip whose port is blocked is overruled by heartbeats that are heard.
// Either is said in the log and in the state, as "blocked".
//
// In a partition no side stops by itself for what it does not hear: a node
// that hears nobody cannot tell whether the others are dead or cut off, and may
// be the only one left, be it one of two or one of five hundred. Where the switch
// itself is divided, each side's clients are served by a node of their side. After
// healing the smaller side is told by the larger one that it was called dead: it
// is held down, so that the addresses stay where they moved; two halves of equal
// size, as in a cluster of two nodes, hold each other down, and the election
// decides as if nobody were. What either side answers twice meanwhile are clients
// that both sides reach.
//
// Keys are rotated without a gap: all that are given are accepted, the first is
// sent with. So a new one is added behind, then moved to the front, then the old
// one is removed, each step when all speakers have taken the one before.
package members
