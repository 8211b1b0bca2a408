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

// The groups of all nodes and of all routers on a link.
var (
	allNodes   = netip.IPv6LinkLocalAllNodes()
	allRouters = netip.IPv6LinkLocalAllRouters()
)

const (
	// writeTimeout bounds the time for which a blocked link delays its goroutine.
	writeTimeout = 50 * time.Millisecond
	// mtu bounds the length of a message. Longer messages are truncated, and then rejected.
	mtu = 1500
)

// listen opens a raw ICMPv6 socket that receives router discovery on one link. It is bound to the link's address, so it
// receives no packets of other links.
func listen(l lb.Interface) (*ndp.Conn, error) {
	link := &net.Interface{
		Index:        l.Index,
		Name:         l.Name,
		HardwareAddr: l.MAC.HardwareAddr(),
		MTU:          mtu,
	}
	conn, _, err := ndp.Listen(link, ndp.Addr(l.LinkLocal().String()))
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}

	filter := &ipv6.ICMPFilter{}
	filter.SetAll(true)
	filter.Accept(ipv6.ICMPTypeRouterAdvertisement)
	err = errors.Join(
		conn.SetICMPFilter(filter),
		conn.SetControlMessage(ipv6.FlagHopLimit, true),
	)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("set up socket: %w", err)
	}

	return conn, nil
}

// advertise advertises this node to all nodes on the link. Its lifetime is 0: the node is no default router. The other
// fields are 0, so they specify nothing (RFC 4861 section 4.2).
func (p *port) advertise() error {
	return p.write(&ndp.RouterAdvertisement{Options: p.options()}, allNodes)
}

// solicit asks all routers on the link to advertise themselves.
func (p *port) solicit() error {
	return p.write(&ndp.RouterSolicitation{Options: p.options()}, allRouters)
}

// options returns the option with this node's MAC, so that the router need not solicit it.
func (p *port) options() []ndp.Option {
	if p.link.MAC == (lb.MAC{}) {
		return nil // a link without Ethernet addresses
	}
	return []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: p.link.MAC.HardwareAddr()}}
}

// write sends a message.
func (p *port) write(m ndp.Message, to netip.Addr) error {
	err := p.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err != nil {
		return err
	}
	return p.conn.WriteTo(m, nil, to)
}

// advertisementLen is the length of an advertisement without options (RFC 4861 section 4.2).
const advertisementLen = 16

// advertises reports whether an ICMPv6 message is an advertisement of a router, by the rules of RFC 4861 section 6.1.2.
// The kernel has checked the checksum. The content is not used, so only the lengths of options are checked: a router
// may send options that no library knows.
func advertises(b []byte, from netip.Addr, hops int) bool {
	if len(b) < advertisementLen {
		return false
	}

	isAdvertisement := ipv6.ICMPType(b[0]) == ipv6.ICMPTypeRouterAdvertisement && b[1] == 0
	isFromLink := hops == ndp.HopLimit && from.Is6() && from.IsLinkLocalUnicast()
	return isAdvertisement && isFromLink && areWhole(b[advertisementLen:])
}

// areWhole reports whether options have their whole length (RFC 4861 section 4.6).
func areWhole(options []byte) bool {
	for len(options) > 0 {
		if len(options) < 8 {
			return false
		}

		// The length is in units of 8 octets; 0 would loop for ever.
		length := int(options[1]) * 8
		if length == 0 || length > len(options) {
			return false
		}

		options = options[length:]
	}

	return true
}
