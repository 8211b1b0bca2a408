package unnumbered

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/ndp"
	"golang.org/x/net/ipv6"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

var (
	allNodes   = netip.MustParseAddr("ff02::1")
	allRouters = netip.MustParseAddr("ff02::2")
)

// writeTimeout bounds how long a blocked link delays its goroutine.
const writeTimeout = 50 * time.Millisecond

// socket is a raw ICMPv6 socket that hears router discovery on one link.
type socket struct {
	conn *ndp.Conn
	mac  net.HardwareAddr
	in   []byte
}

// openSocket binds to the link's address: packets of other links do not arrive.
func openSocket(l lb.Interface) (*socket, error) {
	ifi := &net.Interface{Index: l.Index, Name: l.Name, HardwareAddr: l.MAC.HardwareAddr(), MTU: 1500}
	conn, _, err := ndp.Listen(ifi, ndp.Addr(l.LinkLocal().String()))
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	filter := &ipv6.ICMPFilter{}
	filter.SetAll(true)
	filter.Accept(ipv6.ICMPTypeRouterAdvertisement)
	if err := errors.Join(conn.SetICMPFilter(filter), conn.SetControlMessage(ipv6.FlagHopLimit, true)); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("set up socket: %w", err)
	}
	// Longer messages are cut, and refused for that.
	return &socket{conn: conn, mac: ifi.HardwareAddr, in: make([]byte, ifi.MTU)}, nil
}

// read returns the next message, valid until the next call, and its sender without a zone.
func (s *socket) read() (b []byte, from netip.Addr, hops int, err error) {
	n, control, from, err := s.conn.ReadRaw(s.in)
	if err != nil {
		return nil, netip.Addr{}, 0, err
	}
	if control != nil {
		hops = control.HopLimit
	}
	return s.in[:n], from.WithZone(""), hops, nil
}

// advertise says that this node is here, to all nodes on the link. Lifetime 0: it is no default router. Zero in the other
// fields means that it specifies nothing (RFC 4861 section 4.2).
func (s *socket) advertise() error {
	return s.write(&ndp.RouterAdvertisement{Options: s.options()}, allNodes)
}

// solicit asks all routers on the link to advertise themselves.
func (s *socket) solicit() error {
	return s.write(&ndp.RouterSolicitation{Options: s.options()}, allRouters)
}

// options tells the router this node's MAC, so that it need not ask.
func (s *socket) options() []ndp.Option {
	if len(s.mac) != 6 {
		return nil // a link without Ethernet addresses
	}
	return []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: s.mac}}
}

func (s *socket) write(m ndp.Message, to netip.Addr) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	return s.conn.WriteTo(m, nil, to)
}

func (s *socket) close() { _ = s.conn.Close() }

// advertisementLen is the length of an advertisement without options (RFC 4861 section 4.2).
const advertisementLen = 16

// advertises reports whether an ICMPv6 message is an advertisement of a router, by the rules of RFC 4861 section 6.1.2. The kernel has
// checked the checksum. Nothing inside is of interest, so options are only measured: a router may send any that no library knows.
func advertises(b []byte, from netip.Addr, hops int) bool {
	return len(b) >= advertisementLen && ipv6.ICMPType(b[0]) == ipv6.ICMPTypeRouterAdvertisement && b[1] == 0 && hops == ndp.HopLimit &&
		from.Is6() && from.IsLinkLocalUnicast() && whole(b[advertisementLen:])
}

// whole reports whether options are whole (RFC 4861 section 4.6).
func whole(b []byte) bool {
	for len(b) > 0 {
		// The length is in units of 8 octets; 0 would loop for ever.
		if len(b) < 8 || b[1] == 0 || int(b[1])*8 > len(b) {
			return false
		}
		b = b[int(b[1])*8:]
	}
	return true
}
