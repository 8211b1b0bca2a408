package kubeproxy

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

// forgetAttempts deletes the entries of TCP connections that destination NAT sent to one of the endpoints and that wait for
// its first answer. It returns their number. Connections with an answer stay. It needs CAP_NET_ADMIN. The kernel walks
// the whole table, and shows only what waits.
func forgetAttempts(endpoints map[netip.Addr]bool) (int, error) {
	if len(endpoints) == 0 {
		return 0, nil
	}
	forgotten := 0
	var errs []error
	waiting, err := attempts(endpoints)
	if err != nil {
		errs = append(errs, fmt.Errorf("list conntrack entries: %w", err))
	}
	for _, e := range waiting {
		switch err := remove(e); {
		case err == nil:
			forgotten++
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, fmt.Errorf("delete conntrack entry: %w", err))
		}
	}
	return forgotten, errors.Join(errs...)
}

// entry is what the kernel shows of a connection.
type entry struct {
	family     uint8
	attributes []byte
}

// attempts returns the entries that wait for one of the endpoints; with an error, of those it read. One walk shows both
// families.
func attempts(endpoints map[netip.Addr]bool) (waiting []entry, err error) {
	r := request(unix.AF_UNSPEC, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	// Older kernels ignore the filter, and show everything.
	r.AddData(nl.NewRtAttr(nl.CTA_STATUS, nl.BEUint32Attr(ipsDstNAT)))
	r.AddData(nl.NewRtAttr(ctaStatusMask, nl.BEUint32Attr(ipsDstNAT|ipsSeenReply)))
	err = r.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		if len(message) >= nl.SizeofNfgenmsg && waitsFor(message[nl.SizeofNfgenmsg:], endpoints) {
			waiting = append(waiting, entry{message[0], message[nl.SizeofNfgenmsg:]})
		}
		return true
	})
	return waiting, err
}

// waitsFor reports whether an entry's attributes describe an unanswered attempt to reach one of the endpoints.
func waitsFor(attributes []byte, endpoints map[netip.Addr]bool) bool {
	state := attribute(attributes, nl.CTA_PROTOINFO, nl.CTA_PROTOINFO_TCP, nl.CTA_PROTOINFO_TCP_STATE)
	if len(state) != 1 || state[0] != synSent {
		return false
	}
	// The endpoint is the source of the reply direction.
	endpoint, ok := address(attributes, nl.CTA_TUPLE_REPLY, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC)
	asked, known := address(attributes, nl.CTA_TUPLE_ORIG, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST)
	return ok && known && endpoints[endpoint] && endpoint != asked
}

// address returns an address of one direction; v4 and v6 are its attribute in each family.
func address(attributes []byte, tuple, v4, v6 uint16) (netip.Addr, bool) {
	for _, a := range []uint16{v4, v6} {
		if addr, ok := netip.AddrFromSlice(attribute(attributes, tuple, nl.CTA_TUPLE_IP, a)); ok {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// attribute returns the value of a nested attribute, nil if it is not there.
func attribute(b []byte, path ...uint16) []byte {
	for _, want := range path {
		list, err := nl.ParseRouteAttr(b)
		if err != nil {
			return nil
		}
		b = nil
		for _, a := range list {
			if a.Attr.Type&nl.NLA_TYPE_MASK == want {
				b = a.Value
			}
		}
	}
	return b
}

// remove deletes an entry.
func remove(e entry) error {
	r := request(e.family, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
	r.AddRawData(e.attributes)
	_, err := r.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

func request(family uint8, operation, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(int(netlink.ConntrackTable)<<8|operation, flags)
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return r
}
