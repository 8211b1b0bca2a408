// Package members knows which speakers there are and which of them are alive, from the speakers themselves, so that it
// does not depend on the API server.
//
//	m, err := members.New(members.Config{Config: heartbeats, GossipPort: 7947, Owner: owner, Admit: limiter.Admit})
//	go m.Run(ctx)
//	m.SetSpeakers(addresses)      // the nodes that have a speaker
//	m.SetSelf(self)               // what the other members know of this node
//	...
//	view := m.View()              // which nodes are alive
//	metadata := m.Metadata()      // what each member sent of its node
//	m.Ask("b", addresses, false)  // the answer goes to Owner
//
// Gossip (hashicorp/memberlist) and the list of the speakers' pods show which nodes exist. Gossip also carries each
// speaker's metadata: the state of its node. Heartbeats (internal/heartbeat) show which nodes are alive. If gossip
// reaches a node whose heartbeats do not come, their port is blocked. Gossip decides only if they never came. Members
// also ask each other which addresses they own, where the wire may not show it.
//
// All keys are accepted, and the first one encrypts what is sent. internal/keyed decides which key
// is the first at what time.
//
// The package must not decide anything about addresses.
package members
