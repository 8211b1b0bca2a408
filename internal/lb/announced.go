package lb

import (
	"net/netip"
	"strings"
)

// byNode stands between address and node in the message of the condition AnnouncedL2.
const byNode = " by node "

// AnnouncedBy words that a node announces an address.
func AnnouncedBy(a netip.Addr, node string) string { return a.String() + byNode + node }

// AnnouncedAddresses reads the addresses back from a message made with
// AnnouncedBy, each with the node. What was announced before must be announced at once by whoever
// takes it over, also if that one knows nothing but what the API server holds; and
// who announced it still knows its connections.
func AnnouncedAddresses(message string) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for {
		before, after, found := strings.Cut(message, byNode)
		if !found {
			return out
		}
		if a, err := netip.ParseAddr(before[strings.LastIndexByte(before, ' ')+1:]); err == nil {
			node, _, _ := strings.Cut(after, " ")
			out[a] = strings.TrimRight(node, ",;")
		}
		message = after
	}
}
