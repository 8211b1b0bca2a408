// Package members knows which speakers there are and which of them are alive,
// from the speakers themselves, so that it does not depend on the API server. It
// decides nothing about addresses.
//
// Who exists comes from gossip (hashicorp/memberlist), which also carries what each speaker tells of its
// node, and from the list of the speakers' pods. Who is alive comes from heartbeats
// (internal/heartbeat). Gossip that goes on hearing a node whose heartbeats never
// come shows that their port is blocked; it is believed only where they never came.
//
// In a partition no side stops altogether for what it does not hear: a node
// that hears nobody cannot tell whether the others are dead or cut off, and may
// be the only one left, of two or of five hundred. It stops for what
// it cannot serve, and for what it reads.
//
// What it cannot serve: a node that hears half of the speakers or fewer asks the
// kernels of the others, and announces nothing whose serving endpoints are all on
// nodes of which it hears neither (internal/plan). If the others are dead, nothing is
// lost by that: nobody could serve it. If they are cut off, the node does not draw
// clients away from those that can. What it can serve it announces at once.
//
// What it reads: speakers write to the API server, at once, whom they miss: each
// those whose kernels are silent too, and the first three by name also those that
// were heard before and are silent alone, for the port may be blocked. These three
// repeat their word, for some seconds often. A side with half of the speakers or less
// looks there (Witness). If it finds that others go on writing, miss it, and are
// more, it stands aside for all whom they do not miss; of two halves, as in a cluster
// of two nodes, the one without the lowest name does. A word counts for 5 s, so that a
// side that dies afterwards is followed. Until it had the time to read, a side does
// not believe that a node can be reached whose kernel answers while its speaker fell
// silent without a goodbye: else it would take over from those that run.
//
// Without the API server both sides go on with what they can serve: where the switch
// itself is divided that is right, for each serves its clients.
//
// After healing the smaller side is told by the larger one that it was called
// dead: it is held down, so that addresses stay where they moved. Two halves hold
// each other down, and the election decides as if nobody were.
//
// Of the keys all are accepted, and the first is sent with; internal/rotation says which
// key that is at what time.
package members
