// Package nodelifecycle is a small node lifecycle controller: it takes the endpoints on dead nodes out of their
// Services within a second. The node lifecycle controller of Kubernetes waits 40 to 50 s.
//
// Every speaker writes to its SpeakerState which nodes it cannot reach, and since when. From these suspicions the
// leading controller decides which nodes are dead. It records the decision in the condition EndpointsWithdrawn, and
// marks pods not ready, or ready again.
//
//	c := nodelifecycle.New(cluster, serves, nodelifecycle.Limit{Percent: 10}, log)
//	loop := daemon.NewLoop(daemon.LoopConfig{Name: "nodelifecycle", Log: log, Sync: c.Sync})
//	err := c.Lead(ctx, loop.Run) // kick the loop when a SpeakerState changes
//
// # Rules
//
//   - A node is dead when more than half of all expected speakers suspect it; of two speakers, when the other one does.
//     A renewed Lease of the node, or a write of its own speaker, refutes every suspicion that is older by half a
//     second. So a write just before the node's death refutes nothing. A speaker that writes that it is cut off refutes
//     at once.
//   - Of two speakers, one vote decides, and the voter may be wrong or lie. If it was wrong about a node within the
//     last ten minutes, its vote counts only after 15 s without a sign of life of that node. A kubelet renews its Lease
//     more often than that.
//   - The majority must last for 200 ms. Only suspicions of the last minute declare a node dead: after that time
//     Kubernetes has decided for itself.
//   - If the withdrawn nodes and the new ones together exceed the limit, by default 10 % of the expected speakers, the
//     new ones are spared: then a network failure is more likely. Leases are read at a limited rate. Suspected nodes
//     whose Lease has not been read yet count among the new ones.
//   - The condition EndpointsWithdrawn of the node's SpeakerState records the decision first, so that the next leader
//     can undo it. Then the ready pods on the node that back a Service with an external address are marked not ready,
//     which removes them from the EndpointSlices. The last ready endpoint of any Service stays. For this rule,
//     endpoints on nodes that a majority suspects do not count as ready.
//   - When the majority is gone, or the node shows a sign of life, its pods are restored; later if the node may have
//     been powered off.
//   - A node that Kubernetes calls not ready is left to Kubernetes.
//
// A wrong decision takes healthy endpoints from a Service, so every doubt is decided in favour of the node.
//
// The decisions are pure: condition.go, decide.go, endpoints.go, limit.go and tracker.go take the time and all that was
// read as arguments. They must not use the clock or the API server. Controller reads and writes.
package nodelifecycle
