package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
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
	protocol    byte
	destination netip.Addr
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

// forget does sweeps.
func (c *conntrack) forget(list []sweep) {
	for _, s := range list {
		n, err := s.run()
		if n > 0 {
			c.log.Info("forgot connections of a pod", "pod", s.pod, "connections", n)
		}
		if err != nil {
			c.log.Warn("cannot forget connections of a pod", "pod", s.pod, "error", err)
		}
	}
}

// run does the sweep and returns the number of deleted entries. It needs CAP_NET_ADMIN.
func (s sweep) run() (forgotten int, err error) {
	// One socket serves all deletions: to open it takes longer than to delete an entry.
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, fmt.Errorf("open a netlink socket: %w", err)
	}

	defer socket.Close()
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket}}
	var failed error
	err = eachEntry(originSource, s.pod, func(message []byte, e entry) {
		if !s.deletes(e) {
			return
		}

		r := request(message[0], nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
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

// side selects an address of a conntrack entry.
type side struct {
	tuple, flags uint16
	// v4 and v6 are the attribute types of the address in each family.
	v4, v6 uint16
	// bit is the flag of the address, CTA_FILTER_F_… of net/netfilter/nf_conntrack_netlink.c.
	bit uint32
}

// Constants of linux/netfilter/nfnetlink_conntrack.h.
const (
	ctaFilter            = 25
	ctaFilterOrigFlags   = 1
	ctaFilterReplyFlags  = 2
	ctaFilterSource      = 1 << 0
	ctaFilterDestination = 1 << 1
	ctaICMPID            = 4
	ctaICMPv6ID          = 7
)

// originSource is the source of the original direction, the pod.
var originSource = side{nl.CTA_TUPLE_ORIG, ctaFilterOrigFlags, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, ctaFilterSource}

// replyDestination is the destination of the reply direction, the translated source.
var replyDestination = side{
	nl.CTA_TUPLE_REPLY,
	ctaFilterReplyFlags,
	nl.CTA_IP_V4_DST,
	nl.CTA_IP_V6_DST,
	ctaFilterDestination,
}

// eachEntry calls fn for each entry that has an address on a side. The kernel walks the whole table, and lists only
// those entries (Linux 5.8; an older one lists all).
func eachEntry(s side, a netip.Addr, fn func(message []byte, e entry)) error {
	family, typ := uint8(unix.AF_INET), s.v4
	if a.Is6() {
		family, typ = unix.AF_INET6, s.v6
	}

	list := request(family, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|int(s.tuple), nil)
	tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil).AddRtAttr(int(typ), a.AsSlice())
	filter := nl.NewRtAttr(unix.NLA_F_NESTED|ctaFilter, nil)
	filter.AddRtAttr(int(s.flags), binary.NativeEndian.AppendUint32(nil, s.bit))
	list.AddData(tuple)
	list.AddData(filter)

	err := list.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		if len(message) < nl.SizeofNfgenmsg {
			return true
		}

		attributes := message[nl.SizeofNfgenmsg:]
		found, ok := netip.AddrFromSlice(nft.Attribute(attributes, s.tuple, nl.CTA_TUPLE_IP, typ))
		if ok && found == a {
			fn(message, decodeEntry(attributes))
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
