// Package liveness finds out what heartbeats alone cannot show: which nodes can be reached, which speakers run unheard,
// and which links work. It decides nothing about addresses. The detector's own rules are in internal/heartbeat. This
// package has the rest of the rules of docs/design.md: questions on the wire (2 and 5), links without heartbeats (9:
// links.go asks, linkwatch.go decides), and rule 10, of which that page leaves out:
//
//   - What cannot be served, and partitions (rule 10): speakers write to the API server at once which nodes they miss.
//     Each writes those whose kernels are silent too. The first three by name also write those of which only the
//     speaker fell silent, and repeat it, often while it is recent. A side with half of the speakers or fewer reads
//     these votes. If others go on writing, miss this side, and are more, it yields to them and to all that they do not
//     miss. A vote counts for 5 s, so that a side that dies afterwards is replaced. Until there was time to read, no
//     node counts on one whose kernel answers while its speaker fell silent without a goodbye: otherwise this side
//     would take over from a side that runs.
//   - A goodbye: a node whose speaker left still forwards for some minutes.
//
// No side of a partition stops altogether because of what it does not hear: a node that hears nobody cannot tell
// whether the others are dead or cut off, and may be the only one left. Without the API server all sides go on with
// what they can serve. That is right if the switch itself is divided, since each side serves its clients. After
// healing, the larger side declares to the smaller one that it was dead. The smaller one is held down, so that
// addresses stay where they moved. Two halves hold each other down, and the election decides as if nobody were.
package liveness
