package lb

import "net/netip"

// Start is a frontend that is new, with the endpoints to which this node leads connections until kube-proxy does.
type Start struct {
	Service Key
	Address netip.Addr
	// Protocol is TCP, UDP or SCTP.
	Protocol string
	Port     uint16
	// Endpoints that can serve, ordered; never empty.
	Endpoints []netip.AddrPort
	// Masquerade: endpoints see the node as the client (externalTrafficPolicy: Cluster), so that their answers come back by it.
	Masquerade bool
}
