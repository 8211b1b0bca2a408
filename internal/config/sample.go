package config

import (
	"cmp"
	"net/netip"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

const (
	// maxSampledPods bounds the pods of a sample.
	maxSampledPods = 16
	// maxSampledSlices bounds the EndpointSlices that are read for it.
	maxSampledSlices = 512
)

// PodsElsewhere returns a sample of the ready endpoints on other nodes, with a TCP port: one for each node and family,
// as far as the first EndpointSlices contain any. It leaves out endpoints on the host network, which have the nodes'
// own addresses. A tenant who writes EndpointSlices can replace a node's endpoint in the sample with any address.
func PodsElsewhere(o Objects, node string) (pods []netip.AddrPort) {
	isOtherNode := map[string]bool{}
	isHost := map[string]bool{}
	for _, n := range o.NodesByKey.All() {
		isOtherNode[n.Name] = n.Name != node
		for _, a := range n.Status.Addresses {
			isHost[a.Address] = true
		}
	}

	type nodeFamily struct {
		node   string
		family lb.Family
	}
	isSampled := map[nodeFamily]bool{}
	sliceCount := 0
	for _, slice := range o.SlicesByKey.All() {
		sliceCount++
		if sliceCount > maxSampledSlices {
			break
		}

		port := tcpPort(slice)
		if port == 0 {
			continue
		}

		for _, e := range slice.Endpoints {
			name := valueOr(e.NodeName, "")
			if !isOtherNode[name] || len(e.Addresses) == 0 {
				continue
			}
			if readinessOf(e.Conditions) != ready {
				continue
			}

			text := e.Addresses[0]
			a, err := netip.ParseAddr(text)
			if err != nil || isHost[text] {
				continue
			}
			key := nodeFamily{node: name, family: lb.FamilyOf(a)}
			if isSampled[key] {
				continue
			}

			isSampled[key] = true
			pods = append(pods, netip.AddrPortFrom(a, port))
			if len(pods) == maxSampledPods {
				return pods
			}
		}
	}

	return pods
}

// tcpPort returns the first TCP port of a slice, or 0.
func tcpPort(slice *discoveryv1.EndpointSlice) uint16 {
	for _, p := range slice.Ports {
		port := valueOr(p.Port, 0)
		protocol := cmp.Or(valueOr(p.Protocol, ""), corev1.ProtocolTCP)
		if protocol == corev1.ProtocolTCP && port >= 1 && port <= 65535 {
			return uint16(port)
		}
	}

	return 0
}
