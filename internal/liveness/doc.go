// Package liveness finds out what heartbeats alone cannot show: which nodes can be reached, which speakers run unheard,
// and which links work. A speaker has one Monitor:
//
//	m := liveness.New(liveness.Config{Log: log, Node: node, Cluster: cluster, Asker: responder, Links: links, ...})
//	go m.Run(ctx)                  // asks on the wire
//	...
//	m.Set(liveness.Known{...})     // the speakers and their heartbeats, after each change
//	m.SetOwners(plan.Owners)       // the addresses to ask silent nodes for
//	again, err := m.Probe(ctx)     // asks kernels and reads votes, in a loop that KickProbe wakes
//	state := m.State()             // plan by it
//	silence := m.Silence(repeats)  // write it to the API server
//
// The detector's own rules are in internal/detect. This package has the rest of the rules of docs/design.md: questions
// on the wire (2 and 5), links (9: links.go reads frames and asks, linkwatch.go decides), and rule 10, of which that
// page leaves out:
//
//   - Speakers write to the API server at once which nodes they miss, so that no node announces what cannot be served,
//     and partitions are found. Each speaker writes the nodes whose kernels are silent too. The first three speakers by
//     name also write the nodes of which only the speaker fell silent, and repeat it, often while that is recent. A
//     side with half of the speakers or fewer reads these votes. If other nodes go on writing, miss this side, and are
//     more, it yields to them and to all nodes that they do not miss. A vote counts for 5 s, so that a side that dies
//     afterwards is replaced. Until there was time to read votes, no node counts on a node whose kernel answers while
//     its speaker fell silent without a goodbye: otherwise this side would take over from a side that runs.
//   - A goodbye: a node whose speaker left still forwards for some minutes.
//
// No side of a partition stops altogether because of what it does not hear: a node that hears no other node cannot tell
// whether the others are dead or cut off, and may be the only one left. Without the API server all sides go on with
// what they can serve. That is right if the switch itself is divided, since each side serves its clients. After
// healing, the larger side declares to the smaller side that it was dead. The smaller one is held down, so that
// addresses stay where they moved. Two halves hold each other down, and the election decides as if no node were.
//
// The package must not decide anything about addresses: the plan does, by its State.
package liveness
