package config

import (
	"cmp"
	"net/netip"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

const (
	// maxSample bounds the pods of a sample, maxSampled the EndpointSlices that are read for it.
	maxSample, maxSampled = 16, 512
)

// PodsElsewhere returns a sample of the ready endpoints on other nodes, with a TCP port: one of each node and family,
// as far as the first EndpointSlices name any. It leaves out the nodes' own addresses, which are endpoints on the
// host's network. A tenant who writes EndpointSlices can take a node's place in the sample with any address.
func PodsElsewhere(o Objects, node string) (pods []netip.AddrPort) {
	nodes, hosts := map[string]bool{}, map[string]bool{}
	for _, n := range o.HeldNodes.All() {
		nodes[n.Name] = n.Name != node
		for _, a := range n.Status.Addresses {
			hosts[a.Address] = true
		}
	}

	type place struct {
		node   string
		family lb.Family
	}
	seen := map[place]bool{}
	read := 0
	for _, held := range o.HeldSlices.All() {
		if read++; read > maxSampled {
			break
		}
		slice := held.Read()
		port := tcpPort(slice)
		if port == 0 {
			continue
		}
		for _, e := range slice.Endpoints {
			on := valueOr(e.NodeName, "")
			if !nodes[on] || len(e.Addresses) == 0 || hosts[e.Addresses[0]] || readinessOf(e.Conditions) != ready {
				continue
			}
			a, err := netip.ParseAddr(e.Addresses[0])
			if err != nil || seen[place{on, lb.FamilyOf(a)}] {
				continue
			}
			seen[place{on, lb.FamilyOf(a)}] = true
			pods = append(pods, netip.AddrPortFrom(a, port))
			if len(pods) == maxSample {
				return pods
			}
		}
	}
	return pods
}

// tcpPort returns the first TCP port of a slice; 0 for none.
func tcpPort(slice *discoveryv1.EndpointSlice) uint16 {
	for _, p := range slice.Ports {
		port := valueOr(p.Port, 0)
		if port >= 1 && port <= 65535 && cmp.Or(valueOr(p.Protocol, ""), corev1.ProtocolTCP) == corev1.ProtocolTCP {
			return uint16(port)
		}
	}
	return 0
}
