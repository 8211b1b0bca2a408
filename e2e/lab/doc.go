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
// The plan of the network:
//
//	segment  bridge  IPv4           IPv6          hosts
//	LAN      lan     172.30.0.0/24  fd00:30::/64  cp .10, w1... .11..., client .100, the machine's lab-mgmt .254
//	fabric   fabric  172.31.0.0/24  fd00:31::/64  r1 .1, r2 .2, cp and workers as on the LAN
//	outer    outer   10.200.0.0/24  fd00:200::/64 r1 .1, r2 .2, far .100
//
// On the LAN, 172.30.0.128/26 and fd00:30::1:0/112 are free for pools. r1 is FRR
// in AS 64512, r2 is BIRD in AS 64513; both accept any external neighbour from
// the fabric. Nodes have a default route over both, far has one over r1.
// Services are in 10.96.0.0/16 and fd00:96::/112, the pods of node N in
// 10.244.N.0/24 and fd00:244:0:N::/64, over routes that the lab sets. With a network plugin (Config.Network, package
// plugin) the controller-manager chooses each node's pod prefixes, and the plugin connects them.
//
// The package does not depend on Holdfast. It provides machines, cables and a
// cluster; package e2e installs software there and tests it.
package lab
