// Package nodelifecycle is a small node lifecycle controller: it takes the endpoints
// on dead nodes out of their Services within a second, where that of Kubernetes
// waits 40 to 50 s. Every speaker writes into its SpeakerState which nodes it cannot
// reach, and since when. From these suspicions the leading controller decides:
//
//   - A node is dead when more than half of all expected speakers suspect it; of two
//     speakers, when the other one does. A renewed Lease of the node, or a write of
//     its own speaker, refutes every suspicion that is older by half a second, so that
//     what it wrote just before its death does not. A speaker that writes that it is cut
//     off refutes at once.
//   - Of two speakers, one that was wrong about a node within the last ten minutes is believed again only when nothing was
//     seen of that node for 15 s: more than a kubelet takes to renew its Lease. It may lie.
//   - The majority must stand for 200 ms, and only suspicions of the last minute
//     declare a node dead: after that time Kubernetes has decided for itself.
//   - If the nodes of the last minute and the new ones together exceed the limit (10 %
//     of the expected speakers by default), the new ones are spared: then the network
//     is the likelier culprit. Leases are read at a pace, and suspected nodes whose
//     Lease was not read yet count among the new ones.
//   - The condition EndpointsWithdrawn of the node's SpeakerState records the decision
//     first, so that the next leader can undo it. Then the ready pods on the node that
//     back a Service with an external address are marked not ready, which removes them
//     from the EndpointSlices. The last ready endpoint of any Service stays: endpoints
//     on nodes that a majority suspects do not count beside it.
//   - When the majority is gone, or the node shows life, its pods are restored.
//   - A node that Kubernetes itself calls not ready is left to Kubernetes.
//
// An error here takes healthy endpoints from a Service, so doubt always favours the node.
//
// The decisions are pure: decide.go, endpoints.go, limit.go, pace.go, tracker.go
// and verdict.go take the time and all that was read as arguments. Controller reads
// and writes.
package nodelifecycle
