// Package conntrack has the kernel forget attempts to connect that wait for an
// endpoint which is gone. The kernel keeps sending a connection to the endpoint that
// kube-proxy chose for its first packet, also where that endpoint never answered: a
// client goes on asking a dead one until it gives up, and so does the next that comes
// from the same port, for two minutes (nf_conntrack_tcp_timeout_syn_sent).
// Once that is forgotten, the client's next attempt is led to an endpoint that lives.
package conntrack

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// synSent is TCP_CONNTRACK_SYN_SENT of linux/netfilter/nf_conntrack_tcp.h: nobody has answered.
const synSent = 1

// Forget deletes the entries of TCP connections that wait for the first answer of one of the
// endpoints and were led there by destination NAT, and returns how many these were. Connections
// that were ever answered stay. It takes CAP_NET_ADMIN, and time in proportion to the size of the table.
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
			errs = append(errs, fmt.Errorf("delete entries of conntrack: %w", err))
		}
		forgotten += int(n)
	}
	return forgotten, errors.Join(errs...)
}

// waiting matches what Forget deletes.
type unanswered map[netip.Addr]bool

func (w unanswered) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	tcp, ok := f.ProtoInfo.(*netlink.ProtoInfoTCP)
	if !ok || tcp == nil || tcp.State != synSent {
		return false
	}
	// Who answers is the source of the other direction.
	endpoint, ok := netip.AddrFromSlice(f.Reverse.SrcIP)
	return ok && w[endpoint.Unmap()] && !f.Forward.DstIP.Equal(f.Reverse.SrcIP)
}
