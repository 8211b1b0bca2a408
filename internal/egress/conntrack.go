package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// sweep deletes the connections that a pod opened and for which a function returns true.
type sweep struct {
	pod     netip.Addr
	deletes func(entry) bool
	// ends reports whether the pod is no source any more.
	ends bool
}

// entry is a connection that a pod opened, as conntrack knows it.
type entry struct {
	protocol byte
	// source and destination are the pod and its partner.
	source, destination netip.Addr
	// translated and port are where answers go: the translated source. For ICMP the port is the identifier.
	translated netip.Addr
	port       uint16
	// answers is where answers come from. For ICMP its port is 0.
	answers  netip.AddrPort
	isDstNAT bool
}

// conntrack deletes connections.
type conntrack struct {
	log *slog.Logger
	// wake starts the sweeps of run.
	wake lb.Signal

	mu    sync.Mutex
	queue []sweep
	// pending counts the sweeps with ends that are not finished, by pod.
	pending map[netip.Addr]int
}

func newConntrack(log *slog.Logger) *conntrack {
	return &conntrack{log: log, wake: lb.NewSignal(), pending: make(map[netip.Addr]int)}
}

// isPending reports whether a sweep with ends is not finished for the address of a pod.
func (c *conntrack) isPending(pod netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending[pod] > 0
}

// forgetLater makes run do sweeps.
func (c *conntrack) forgetLater(list []sweep) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, list...)
	for _, s := range list {
		if s.ends {
			c.pending[s.pod]++
		}
	}

	if len(list) > 0 {
		c.wake.Kick()
	}
}

// run does the sweeps of forgetLater until the context ends.
func (c *conntrack) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		}

		c.mu.Lock()
		list := c.queue
		c.queue = nil
		c.mu.Unlock()

		c.forget(list)
		c.finish(list)
	}
}

// finish records that sweeps are finished.
func (c *conntrack) finish(list []sweep) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range list {
		if !s.ends {
			continue
		}

		c.pending[s.pod]--
		if c.pending[s.pod] == 0 {
			delete(c.pending, s.pod)
		}
	}
}

// forget does sweeps, with one listing for each family.
func (c *conntrack) forget(list []sweep) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		pods := make(map[netip.Addr][]sweep)
		for _, s := range list {
			if s.pod.Is4() == (family == unix.AF_INET) {
				pods[s.pod] = append(pods[s.pod], s)
			}
		}

		if len(pods) == 0 {
			continue
		}

		n, err := forget(family, pods)
		if n > 0 {
			c.log.Info("forgot connections of pods", "pods", len(pods), "connections", n)
		}
		if err != nil {
			c.log.Warn("cannot forget connections of pods", "pods", len(pods), "error", err)
		}
	}
}

// forget does the sweeps of some pods of a family, and returns the number of deleted entries. It needs CAP_NET_ADMIN.
func forget(family uint8, pods map[netip.Addr][]sweep) (forgotten int, err error) {
	// One socket serves all deletions: to open it takes longer than to delete an entry.
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, fmt.Errorf("open a netlink socket: %w", err)
	}

	defer socket.Close()
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket}}
	var failed error
	err = eachEntry(family, ofPod(pods), func(message []byte, e entry) {
		deletes := func(s sweep) bool { return s.deletes(e) }
		if !slices.ContainsFunc(pods[e.source], deletes) {
			return
		}

		r := request(family, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
		r.AddRawData(message[nl.SizeofNfgenmsg:])
		r.Sockets = sockets
		_, err := r.Execute(unix.NETLINK_NETFILTER, 0)
		switch {
		case err == nil:
			forgotten++
		case !errors.Is(err, fs.ErrNotExist):
			failed = fmt.Errorf("delete conntrack entry: %w", err)
		}
	})

	return forgotten, errors.Join(err, failed)
}

// Constants of linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_common.h.
const (
	ctaFilter           = 25
	ctaFilterOrigFlags  = 1
	ctaFilterOrigSource = 1 << 0
	ctaStatusMask       = 26
	ctaICMPID           = 4
	ctaICMPv6ID         = 7
	ipsSrcNAT           = 1 << 4
)

// ofPod returns the attributes that make the kernel list only the connections of a single IPv4 pod (Linux 5.8); none
// for others. For an IPv6 address the kernel lists exactly the other connections: ctnetlink_filter_match_tuple has the
// comparison the wrong way round.
func ofPod(pods map[netip.Addr][]sweep) (list []nl.NetlinkRequestData) {
	for pod := range pods {
		if len(pods) > 1 || !pod.Is4() {
			return nil
		}

		tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
		tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil).AddRtAttr(nl.CTA_IP_V4_SRC, pod.AsSlice())
		filter := nl.NewRtAttr(unix.NLA_F_NESTED|ctaFilter, nil)
		filter.AddRtAttr(ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, ctaFilterOrigSource))
		list = append(list, tuple, filter)
	}

	return list
}

// translatedOnly returns the attributes that make the kernel list only connections with a translated source. Older
// kernels list all.
func translatedOnly() []nl.NetlinkRequestData {
	return []nl.NetlinkRequestData{
		nl.NewRtAttr(nl.CTA_STATUS, nl.BEUint32Attr(ipsSrcNAT)),
		nl.NewRtAttr(ctaStatusMask, nl.BEUint32Attr(ipsSrcNAT)),
	}
}

// eachEntry calls fn for each entry of a family that the kernel selects by some attributes, and maybe for others. The
// kernel walks the whole table.
func eachEntry(family uint8, selection []nl.NetlinkRequestData, fn func(message []byte, e entry)) error {
	list := request(family, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	for _, attribute := range selection {
		list.AddData(attribute)
	}

	err := list.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		if len(message) >= nl.SizeofNfgenmsg {
			fn(message, decodeEntry(message[nl.SizeofNfgenmsg:]))
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("list conntrack entries: %w", err)
	}

	return nil
}

// decodeEntry decodes a listed entry.
func decodeEntry(attributes []byte) (e entry) {
	if number := nft.Attribute(attributes, nl.CTA_TUPLE_ORIG, nl.CTA_TUPLE_PROTO, nl.CTA_PROTO_NUM); len(number) == 1 {
		e.protocol = number[0]
	}

	if status := nft.Attribute(attributes, nl.CTA_STATUS); len(status) == 4 {
		e.isDstNAT = binary.BigEndian.Uint32(status)&ipsDstNAT != 0
	}

	e.source = decodeAddress(attributes, nl.CTA_TUPLE_ORIG, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC)
	e.destination = decodeAddress(attributes, nl.CTA_TUPLE_ORIG, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST)
	e.translated = decodeAddress(attributes, nl.CTA_TUPLE_REPLY, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST)
	e.port = decodePort(attributes, nl.CTA_PROTO_DST_PORT, ctaICMPID, ctaICMPv6ID)
	answers := decodeAddress(attributes, nl.CTA_TUPLE_REPLY, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC)
	e.answers = netip.AddrPortFrom(answers, decodePort(attributes, nl.CTA_PROTO_SRC_PORT))
	return e
}

// decodeAddress returns an address of one direction. The arguments v4 and v6 are its attribute types in each family.
func decodeAddress(attributes []byte, tuple, v4, v6 uint16) netip.Addr {
	for _, typ := range []uint16{v4, v6} {
		a, ok := netip.AddrFromSlice(nft.Attribute(attributes, tuple, nl.CTA_TUPLE_IP, typ))
		if ok {
			return a
		}
	}
	return netip.Addr{}
}

// decodePort returns the first number of the reply direction that has one of the types; 0 if there is none.
func decodePort(attributes []byte, types ...uint16) uint16 {
	for _, typ := range types {
		number := nft.Attribute(attributes, nl.CTA_TUPLE_REPLY, nl.CTA_TUPLE_PROTO, typ)
		if len(number) == 2 {
			return binary.BigEndian.Uint16(number)
		}
	}
	return 0
}

// request returns a request about the conntrack table.
func request(family uint8, operation, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(int(netlink.ConntrackTable)<<8|operation, flags)
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return r
}
