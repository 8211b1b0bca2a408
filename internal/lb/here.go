package lb

import (
	"net/netip"
	"time"
)

// Here is what one node knows of itself that the API server does not.
type Here struct {
	// Addresses on the node's links.
	Addresses []netip.Addr
	// Unfiltered: the node's packet filter is not in force, so that the node must not attract traffic for
	// addresses with source ranges.
	Unfiltered bool
	// Refused are the Services whose source ranges the node's kernel refuses. Their addresses are closed here, so that the
	// node must not attract traffic for them; the filter of all others is in force.
	Refused map[Key]bool
	// Unserved are Services with externalTrafficPolicy Local whose endpoints on this node kube-proxy does not serve yet.
	Unserved map[Key]bool
	// HearsBadly: few heartbeats of others arrive, and the fault is this node's own.
	HearsBadly bool
	// CutOffFrom are the nodes that this one does not hear, if they are half of the others or more. The value
	// is true if the node's kernel does not answer either, false while that is not known.
	CutOffFrom map[string]bool
	// Announced are the addresses that this node announces by ARP and NDP now; set only while it is cut off.
	Announced map[netip.Addr]bool
	// Advertised are the addresses that this node advertises by BGP by its last plan, in any epoch; until then, if it leaves
	// them.
	Advertised map[netip.Addr]time.Time
	// Partition is what other sides of a partition wrote, if this node is cut off and reaches the API server.
	Partition Partition
	// Previous is this node's last plan. It is nil if the speaker has just started, or was stopped for so long
	// that others may have decided without it.
	Previous *Previous
	// Inherited maps each address that an earlier run of this speaker took over to an address of its former
	// owner, also if the relay has ended.
	Inherited map[netip.Addr]netip.Addr
}

// Previous is what the next plan needs to know of the last one.
type Previous struct {
	// Owners are the nodes that announced each address, as this node saw it.
	Owners map[netip.Addr]string
	// Relays of this node, ordered by address.
	Relays []Relay
}
