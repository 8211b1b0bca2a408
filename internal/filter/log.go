package filter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// readLog writes the dropped packets of frontends with LogDrops to the log, until the context ends. The logging rules
// limit their rate.
func (t *Table) readLog(ctx context.Context) error {
	for {
		conn, err := openLog(logGroup)
		if err == nil {
			err = nft.Receive(ctx, conn, func() {}, func(m netlink.Message) { t.logPacket(parseLogged(m)) })
		}

		if ctx.Err() != nil {
			return nil
		}

		t.log.Warn("cannot read dropped packets from NFLOG", "error", err)
		nft.Sleep(ctx, logRetry)
	}
}

// logRetry is the time after which a socket that failed, or was refused, is opened again.
const logRetry = 30 * time.Second

// logPacket logs one drop, with the Service of its frontend.
func (t *Table) logPacket(why string, packet []byte) {
	h, ok := parseHeader(packet)
	if !ok {
		return
	}

	img := t.owned.Actual()
	var service lb.Key
	if img != nil {
		service = img.serviceAt(h.to, nft.PortKey(h.to, h.protocol, h.port))
	}

	t.log.Info("packet refused", "service", service, "reason", why,
		"source", h.from, "address", h.to, "protocol", nft.ProtocolName(h.protocol), "port", h.port)
}

// Of linux/netfilter/nfnetlink_log.h.
const (
	logMessagePacket = 0  // NFULNL_MSG_PACKET
	logMessageConfig = 1  // NFULNL_MSG_CONFIG
	logConfigCommand = 1  // NFULA_CFG_CMD
	logConfigMode    = 2  // NFULA_CFG_MODE
	logBind          = 1  // NFULNL_CFG_CMD_BIND
	logCopyPacket    = 2  // NFULNL_COPY_PACKET
	logPayload       = 9  // NFULA_PAYLOAD
	logPrefix        = 10 // NFULA_PREFIX
)

// openLog opens a socket that receives the packets logged to a group of NFLOG.
func openLog(group uint16) (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open NFLOG: %w", err)
	}

	a, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: logConfigCommand, Data: []byte{logBind}},
		{Type: logConfigMode, Data: append(binary.BigEndian.AppendUint32(nil, logSnapshot), logCopyPacket, 0)},
	})
	if err == nil {
		_, err = conn.Execute(netlink.Message{
			Header: netlink.Header{
				Type:  netlink.HeaderType(unix.NFNL_SUBSYS_ULOG<<8 | logMessageConfig),
				Flags: netlink.Request | netlink.Acknowledge,
			},
			Data: append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, byte(group >> 8), byte(group)}, a...),
		})
	}

	if err != nil {
		return nil, errors.Join(fmt.Errorf("bind NFLOG group %d: %w", group, err), conn.Close())
	}

	return conn, nil
}

// parseLogged returns the beginning of a packet from NFLOG, and why it was refused; nothing of other messages.
func parseLogged(m netlink.Message) (why string, packet []byte) {
	if m.Header.Type != unix.NFNL_SUBSYS_ULOG<<8|logMessagePacket || len(m.Data) < nft.HeaderSize {
		return "", nil
	}
	a := m.Data[nft.HeaderSize:]
	return strings.TrimRight(string(nft.Attribute(a, logPrefix)), "\x00"), nft.Attribute(a, logPayload)
}

// header is the addresses, protocol and destination port of a packet.
type header struct {
	from, to netip.Addr
	protocol byte
	port     uint16
}

// parseHeader reads IPv4 (RFC 791) or IPv6 (RFC 8200), without extension headers, and the destination port.
func parseHeader(packet []byte) (h header, ok bool) {
	var from, to net.IP
	if six, err := ipv6.ParseHeader(packet); err == nil && six.Version == ipv6.Version {
		from, to, h.protocol, packet = six.Src, six.Dst, byte(six.NextHeader), packet[ipv6.HeaderLen:]
	} else if four, err := ipv4.ParseHeader(packet); err == nil &&
		four.Version == ipv4.Version &&
		four.Len <= len(packet) {
		from, to, h.protocol, packet = four.Src.To4(), four.Dst.To4(), byte(four.Protocol), packet[four.Len:]
	}

	const portEnd = 4
	if len(from) == 0 || len(packet) < portEnd {
		return h, false
	}

	h.from, _ = netip.AddrFromSlice(from)
	h.to, _ = netip.AddrFromSlice(to)
	h.port = binary.BigEndian.Uint16(packet[2:])
	return h, true
}
