// Package quorum decides which nodes are dead, on the word of the speakers of
// all the others, so that the endpoints on them can be withdrawn long before
// Kubernetes' own node lifecycle controller does so. It is pure: the time and all
// that was read are arguments.
//
// Whoever is wrong here takes healthy endpoints from a Service, so everything
// that is not known for certain speaks for the node: a word older than a sign of
// life does not count, half of the speakers are not enough, and where more nodes
// fall silent at once than may, the network is the likelier culprit.
package quorum
