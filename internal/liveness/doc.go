// Package liveness finds out what heartbeats alone cannot tell: who can be reached, who runs
// unheard, and which links work. It decides nothing about addresses. The detector's own rules are in
// internal/heartbeat. These are the others:
//
//   - The wire: a node that falls silent is asked at its own MAC whether it answers for what it announces, beside
//     foreign machines on the link of the heartbeats. A blocked port is so told from a death: a dead or frozen
//     node is silent there, too, and one that answers holds what it has.
//   - A link without heartbeats: a node that hears nobody there, neither speakers nor foreign machines,
//     tells the others so, and ranks behind those that do. Where nobody on a link hears anybody, nothing moves.
//   - What cannot be served: a node that hears half of the speakers or fewer asks the kernels of the others, and
//     announces nothing whose serving endpoints are all on nodes of which it hears neither (internal/plan). If
//     those are dead, nobody could serve it. If they are cut off, clients are not drawn away from them.
//   - A partition: speakers write to the API server at once whom they miss. Each writes those whose kernels are silent
//     too; the first three by name also write those that were heard before and are silent alone, and repeat it,
//     often while it is news. A side with half of the speakers or fewer reads that. If others go on
//     writing, miss it, and are more, it stands aside for all whom they do not miss; of two halves the one
//     without the lowest name does. A word counts for 5 s, so that a side that dies afterwards is followed. Until
//     there was time to read, nobody counts on a node whose kernel answers while its speaker fell silent
//     without a goodbye: else it would take over from those that run.
//   - A goodbye: the kernel of a node whose speaker left forwards for some minutes more.
//
// No side of a partition stops altogether for what it does not hear: a node that hears nobody cannot
// tell whether the others are dead or cut off, and may be the only one left. Without the API
// server all sides go on with what they can serve: where the switch itself is divided that is right,
// for each serves its clients. After healing the smaller side is told by the larger one that
// it was called dead, and is held down, so that addresses stay where they moved. Two
// halves hold each other down, and the election decides as if nobody were.
package liveness
