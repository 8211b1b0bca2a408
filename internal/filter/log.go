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

// readLog logs the dropped packets of frontends with LogDrops until the context ends. The rules limit their rate.
func (t *Table) readLog(ctx context.Context) error {
	for {
		conn, err := openLog(logGroup)
		if err == nil {
			err = nft.Receive(ctx, conn, func() {}, func(m netlink.Message) {
				t.logPacket(parseLogged(m))
			})
		}

		if ctx.Err() != nil {
			return nil
		}

		t.log.Warn("cannot read dropped packets from NFLOG", "error", err)
		nft.Sleep(ctx, logRetry)
	}
}

// logRetry is the pause before a socket is opened again that failed or could not be opened.
const logRetry = 30 * time.Second

// logPacket logs one drop, with the Service of its frontend.
func (t *Table) logPacket(reason string, packet []byte) {
	h, ok := parseHeader(packet)
	if !ok {
		return
	}

	img := t.owned.Actual()
	var service lb.Key
	if img != nil {
		service = img.serviceAt(h.to, nft.PortKey(h.to, h.protocol, h.port))
	}

	t.log.Info(
		"packet refused",
		"service", service,
		"reason", reason,
		"source", h.from,
		"address", h.to,
		"protocol", nft.ProtocolName(h.protocol),
		"port", h.port,
	)
}

// Constants of linux/netfilter/nfnetlink_log.h.
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

	err = bind(conn, group)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bind NFLOG group %d: %w", group, err), conn.Close())
	}

	return conn, nil
}

// bind binds a socket to a group, and sets how much of each packet it receives.
func bind(conn *netlink.Conn, group uint16) error {
	mode := binary.BigEndian.AppendUint32(nil, logSnapshot)
	mode = append(mode, logCopyPacket, 0)
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: logConfigCommand, Data: []byte{logBind}},
		{Type: logConfigMode, Data: mode},
	})
	if err != nil {
		return err
	}

	header := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}
	header = binary.BigEndian.AppendUint16(header, group)
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_ULOG<<8 | logMessageConfig),
			Flags: netlink.Request | netlink.Acknowledge,
		},
		Data: append(header, attributes...),
	})
	return err
}

// parseLogged returns the beginning of a packet from NFLOG, and the reason for its drop; zero values for other
// messages.
func parseLogged(m netlink.Message) (reason string, packet []byte) {
	if m.Header.Type != unix.NFNL_SUBSYS_ULOG<<8|logMessagePacket || len(m.Data) < nft.HeaderSize {
		return "", nil
	}

	a := m.Data[nft.HeaderSize:]
	reason = strings.TrimRight(string(nft.Attribute(a, logPrefix)), "\x00")
	return reason, nft.Attribute(a, logPayload)
}

// header holds the addresses, the protocol and the destination port of a packet.
type header struct {
	from, to netip.Addr
	protocol byte
	port     uint16
}

// parseHeader parses the header of a packet, and the destination port behind it.
func parseHeader(packet []byte) (h header, ok bool) {
	h, transport, ok := parseNetworkHeader(packet)
	const portEnd = 4
	if !ok || len(transport) < portEnd {
		return h, false
	}

	h.port = binary.BigEndian.Uint16(transport[2:])
	return h, true
}

// parseNetworkHeader parses the header of IPv4 (RFC 791), or of IPv6 (RFC 8200) without extension headers. It returns
// the bytes behind the header.
func parseNetworkHeader(packet []byte) (h header, transport []byte, ok bool) {
	var from, to net.IP
	six, err6 := ipv6.ParseHeader(packet)
	four, err4 := ipv4.ParseHeader(packet)
	switch {
	case err6 == nil && six.Version == ipv6.Version:
		from, to = six.Src, six.Dst
		h.protocol = byte(six.NextHeader)
		transport = packet[ipv6.HeaderLen:]
	case err4 == nil && four.Version == ipv4.Version && four.Len <= len(packet):
		from = four.Src.To4()
		to = four.Dst.To4()
		h.protocol = byte(four.Protocol)
		transport = packet[four.Len:]
	default:
		return h, nil, false
	}

	h.from, _ = netip.AddrFromSlice(from)
	h.to, _ = netip.AddrFromSlice(to)
	return h, transport, true
}
