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

var allNodes, allRouters = netip.IPv6LinkLocalAllNodes(), netip.IPv6LinkLocalAllRouters()

const (
	// writeTimeout bounds how long a blocked link delays its goroutine.
	writeTimeout = 50 * time.Millisecond
	// mtu is how long a message may be that is heard. Longer ones are cut, and refused for that.
	mtu = 1500
)

// listen opens a raw ICMPv6 socket that hears router discovery on one link. It is bound to the link's address: packets
// of other links do not arrive.
func listen(l lb.Interface) (*ndp.Conn, error) {
	conn, _, err := ndp.Listen(
		&net.Interface{Index: l.Index, Name: l.Name, HardwareAddr: l.MAC.HardwareAddr(), MTU: mtu},
		ndp.Addr(l.LinkLocal().String()),
	)
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
	return conn, nil
}

// advertise says that this node is here, to all nodes on the link. Lifetime 0: it is no default router. Zero in the
// other fields means that it specifies nothing (RFC 4861 section 4.2).
func (p *port) advertise() error {
	return p.write(&ndp.RouterAdvertisement{Options: p.options()}, allNodes)
}

// solicit asks all routers on the link to advertise themselves.
func (p *port) solicit() error {
	return p.write(&ndp.RouterSolicitation{Options: p.options()}, allRouters)
}

// options tells the router this node's MAC, so that it need not ask.
func (p *port) options() []ndp.Option {
	if p.link.MAC == (lb.MAC{}) {
		return nil // a link without Ethernet addresses
	}
	return []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: p.link.MAC.HardwareAddr()}}
}

func (p *port) write(m ndp.Message, to netip.Addr) error {
	if err := p.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	return p.conn.WriteTo(m, nil, to)
}

// advertisementLen is the length of an advertisement without options (RFC 4861 section 4.2).
const advertisementLen = 16

// advertises reports whether an ICMPv6 message is an advertisement of a router, by the rules of RFC 4861 section 6.1.2.
// The kernel has checked the checksum. Nothing inside is of interest, so options are only measured: a router may send
// any that no library knows.
func advertises(b []byte, from netip.Addr, hops int) bool {
	return len(b) >= advertisementLen &&
		ipv6.ICMPType(b[0]) == ipv6.ICMPTypeRouterAdvertisement &&
		b[1] == 0 &&
		hops == ndp.HopLimit &&
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
