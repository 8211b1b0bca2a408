// Package liveness asks the wire what heartbeats alone cannot tell. It sends a few unicast frames, and decides nothing
// about addresses.
//
// A Wire asks a node that fell silent, at its own MAC, whether it answers for what it announces, and beside
// it foreign machines on the same links. So a blocked port is told from a death: a node that is dead or
// frozen is silent there, too, and one that answers holds what it has (internal/heartbeat has the rules).
//
// Links watches the links that heartbeats do not use. A node that hears nobody on such a link, neither
// speakers nor foreign machines, tells the others so and ranks behind those that do. Where nobody on
// a link hears anybody all say so, and nothing moves.
//
// Problems says what of this a user must mend.
package liveness
