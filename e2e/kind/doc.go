// Package kind is a cluster for the end-to-end tests made by kind: Kubernetes in Docker. It has the hosts, the
// addresses and the faults of the lab (package wire), so that the same tests run on it.
//
// Nodes are kind's containers, and their first link is Docker's. All other hosts and links are cabled by hand to
// bridges that Docker made as networks. A host's power is docker kill, its freeze docker pause; cables and frames are
// cut on the ports of the bridges, in Docker's network namespace, where all of this package has to run, as root.
package kind
