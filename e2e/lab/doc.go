// Package lab brings up a real Kubernetes of several nodes on one machine and
// breaks it on demand.
//
// Every host (control plane, workers, routers, client, far host) is a set of
// namespaces of its own: network, mount, PID, UTS, IPC and cgroup, with a small
// PID 1 (package hostinit). The hosts are cabled to bridges that live in a
// namespace of the lab as well, so the machine's own netfilter never sees a
// frame of theirs. All processes run below one cgroup, and every name that is
// visible on the machine carries the prefix of the lab: Down finds what is
// there by looking, with or without the lab's state.
//
// The package knows nothing of Holdfast. It provides machines, cables and a
// cluster; what is installed there and what is expected of it is the business
// of package e2e.
package lab
