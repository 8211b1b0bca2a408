// Package conntrack deletes the conntrack entries of connection attempts to dead
// endpoints. An entry binds a connection to the endpoint that kube-proxy chose for the
// first packet, even if that endpoint never answers. Every SYN that the client repeats,
// and every new connection from the same port, goes to the dead endpoint for two minutes
// (nf_conntrack_tcp_timeout_syn_sent). After the deletion, kube-proxy chooses an endpoint
// for the next SYN.
package conntrack

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// synSent is TCP_CONNTRACK_SYN_SENT of linux/netfilter/nf_conntrack_tcp.h: no answer to the SYN yet.
const synSent = 1

// Forget deletes the entries of TCP connections that destination NAT sent to one of the endpoints and that wait for
// its first answer. It returns their number. Connections with an answer stay. It needs CAP_NET_ADMIN, and takes time in
// proportion to the size of the conntrack table.
func Forget(endpoints map[netip.Addr]bool) (int, error) {
	families := map[netlink.InetFamily]bool{}
	for a := range endpoints {
		if a.Is4() {
			families[unix.AF_INET] = true
		} else {
			families[unix.AF_INET6] = true
		}
	}
	forgotten := 0
	var errs []error
	for family := range families {
		n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, unanswered(endpoints))
		if err != nil {
			errs = append(errs, fmt.Errorf("delete conntrack entries: %w", err))
		}
		forgotten += int(n)
	}
	return forgotten, errors.Join(errs...)
}

// unanswered matches the entries that Forget deletes.
type unanswered map[netip.Addr]bool

func (u unanswered) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	tcp, ok := f.ProtoInfo.(*netlink.ProtoInfoTCP)
	if !ok || tcp == nil || tcp.State != synSent {
		return false
	}
	// The endpoint is the source of the reply direction.
	endpoint, ok := netip.AddrFromSlice(f.Reverse.SrcIP)
	return ok && u[endpoint.Unmap()] && !f.Forward.DstIP.Equal(f.Reverse.SrcIP)
}
