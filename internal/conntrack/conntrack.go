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
	"io/fs"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of linux/netfilter/nfnetlink_conntrack.h, nf_conntrack_common.h and nf_conntrack_tcp.h.
const (
	ctaStatusMask = 26
	ipsSeenReply  = 1 << 1
	ipsDstNAT     = 1 << 5
	// synSent: no answer to the SYN yet.
	synSent = 1
)

// Forget deletes the entries of TCP connections that destination NAT sent to one of the endpoints and that wait for
// its first answer. It returns their number. Connections with an answer stay. It needs CAP_NET_ADMIN. The kernel walks
// the whole table, and shows only what waits.
func Forget(endpoints map[netip.Addr]bool) (int, error) {
	families := map[uint8]bool{}
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
		waiting, err := attempts(family, endpoints)
		if err != nil {
			errs = append(errs, fmt.Errorf("list conntrack entries: %w", err))
		}
		for _, entry := range waiting {
			switch err := remove(family, entry); {
			case err == nil:
				forgotten++
			case !errors.Is(err, fs.ErrNotExist):
				errs = append(errs, fmt.Errorf("delete conntrack entry: %w", err))
			}
		}
	}
	return forgotten, errors.Join(errs...)
}

// attempts returns the attributes of the entries that wait for one of the endpoints; with an error, of those it read.
func attempts(family uint8, endpoints map[netip.Addr]bool) (waiting [][]byte, err error) {
	r := request(family, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	// Older kernels ignore the filter, and show everything.
	r.AddData(nl.NewRtAttr(nl.CTA_STATUS, nl.BEUint32Attr(ipsDstNAT)))
	r.AddData(nl.NewRtAttr(ctaStatusMask, nl.BEUint32Attr(ipsDstNAT|ipsSeenReply)))
	err = r.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		if entry := message[min(len(message), nl.SizeofNfgenmsg):]; waitsFor(entry, endpoints) {
			waiting = append(waiting, entry)
		}
		return true
	})
	return waiting, err
}

// waitsFor reports whether an entry's attributes are those of an unanswered attempt to reach one of the endpoints.
func waitsFor(entry []byte, endpoints map[netip.Addr]bool) bool {
	state := attribute(entry, nl.CTA_PROTOINFO, nl.CTA_PROTOINFO_TCP, nl.CTA_PROTOINFO_TCP_STATE)
	if len(state) != 1 || state[0] != synSent {
		return false
	}
	// The endpoint is the source of the reply direction.
	endpoint, ok := address(entry, nl.CTA_TUPLE_REPLY, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC)
	asked, known := address(entry, nl.CTA_TUPLE_ORIG, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST)
	return ok && known && endpoints[endpoint] && endpoint != asked
}

// address returns an address of one direction; v4 and v6 are its attribute in each family.
func address(entry []byte, tuple, v4, v6 uint16) (netip.Addr, bool) {
	for _, a := range []uint16{v4, v6} {
		if addr, ok := netip.AddrFromSlice(attribute(entry, tuple, nl.CTA_TUPLE_IP, a)); ok {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// attribute returns the value of a nested attribute, nil if it is not there.
func attribute(b []byte, path ...uint16) []byte {
	for _, want := range path {
		attributes, err := nl.ParseRouteAttr(b)
		if err != nil {
			return nil
		}
		b = nil
		for _, a := range attributes {
			if a.Attr.Type&nl.NLA_TYPE_MASK == want {
				b = a.Value
			}
		}
	}
	return b
}

// remove deletes the entry with these attributes.
func remove(family uint8, entry []byte) error {
	r := request(family, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
	r.AddRawData(entry)
	_, err := r.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

func request(family uint8, operation, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(int(netlink.ConntrackTable)<<8|operation, flags)
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return r
}
