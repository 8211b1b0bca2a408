package engine

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// nextHop returns the next hop of a route; the zero Addr stands for this node's address on the session. Without one, the
// route is withheld: GoBGP itself knows the session's address only.
func (e *engine) nextHop(prefix netip.Prefix) (hop netip.Addr, ok bool) {
	if lb.FamilyOf(prefix.Addr()) == lb.FamilyOf(e.settings.Address) {
		return netip.Addr{}, true
	}
	return e.hop, e.hop.IsValid()
}

// carries sets what an established session carries of the routes, and why it carries less than all.
func (e *engine) carries(out *lb.Session) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		n := 0
		for prefix := range e.routes {
			if lb.FamilyOf(prefix.Addr()) == f {
				n++
			}
		}
		why := ""
		switch {
		case !e.router.takes(f):
			why = fmt.Sprintf("the router has not activated %s unicast for this node", f)
		case f == lb.FamilyOf(e.settings.Address) || e.hop.IsValid():
			out.Families, out.Advertised = append(out.Families, f), out.Advertised+n
		case f == lb.IPv4:
			why = fmt.Sprintf("this node has no %s address on the link, and the router does not take %s next hops for them (RFC 8950)", f, lb.IPv6)
		default:
			why = fmt.Sprintf("this node has no %s address on the link", f)
		}
		if n > 0 && why != "" && out.Withheld == "" {
			out.Withheld = fmt.Sprintf("%s routes are not sent: %s", f, why)
		}
	}
}

// other is the family that is not the session's own.
func other(s lb.Peer) lb.Family {
	if s.Address.Is4() {
		return lb.IPv6
	}
	return lb.IPv4
}

// followHop finds the next hop of routes of the other family: this node's address of that family on the session's link. If
// it changed, they are placed again. While it cannot be found out, it stays, and the next order looks again. There is none as
// long as it depends on what the router did not say yet.
func (e *engine) followHop() error {
	hop, err := e.findHop(e.router&extendedNextHop != 0)
	if err == nil && !e.up {
		var otherwise netip.Addr
		if otherwise, err = e.findHop(true); otherwise != hop {
			hop = netip.Addr{}
		}
	}
	if err != nil {
		e.warn("the next hop stays: " + err.Error())
		return nil
	}
	if hop == e.hop {
		return nil
	}
	e.hop = hop
	var others []lb.Route
	for prefix, r := range e.routes {
		if lb.FamilyOf(prefix.Addr()) == other(e.settings) {
			others = append(others, r)
		}
	}
	return e.put(others)
}

// findHop finds it for a router that takes IPv6 next hops for IPv4 routes (RFC 8950), or does not.
func (e *engine) findHop(takes bool) (netip.Addr, error) {
	if !e.settings.DualStack {
		return netip.Addr{}, nil
	}
	local, ok := localAddress(e.settings)
	if !ok {
		return e.hop, nil
	}
	ours := local.WithZone("")
	takes = takes && other(e.settings) == lb.IPv4
	if takes && ours.IsLinkLocalUnicast() {
		return ours, nil // the router may have no IPv4 address on the link
	}
	all, err := e.addresses()
	if err != nil { // also a dump during which they changed, which may lack some
		return netip.Addr{}, fmt.Errorf("read this node's addresses: %w", err)
	}
	hop := onLinkOf(all, local, other(e.settings))
	if !hop.IsValid() && takes {
		return ours, nil
	}
	return hop, nil
}

// localAddress is the address from which this node dials a peer, unless there is no route to it at present. It looks at the
// routing table, and sends nothing.
func localAddress(s lb.Peer) (local netip.Addr, ok bool) {
	if s.SourceAddress.IsValid() {
		return s.SourceAddress, true
	}
	conn, err := net.Dial("udp", net.JoinHostPort(s.Address.String(), strconv.Itoa(int(s.Port))))
	if err != nil {
		return netip.Addr{}, false
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), true
}

// onLinkOf is the first address of a family on the link that has another address, of those that last, if there is one.
// Link-local ones do not count: a router may pass the route on.
func onLinkOf(all []netlink.Addr, local netip.Addr, family lb.Family) netip.Addr {
	link := 0
	for _, a := range all {
		if addressOf(a) == local {
			link = a.LinkIndex
		}
	}
	if zone := local.Zone(); zone != "" { // other links may have the same address
		if i, err := net.InterfaceByName(zone); err == nil {
			link = i.Index
		}
	}
	var passes netip.Addr
	for _, a := range all {
		address := addressOf(a)
		if a.LinkIndex != link || lb.FamilyOf(address) != family || !address.IsGlobalUnicast() || a.Flags&unusableFlags != 0 {
			continue
		}
		if a.Flags&unix.IFA_F_PERMANENT != 0 {
			return address
		}
		if !passes.IsValid() {
			passes = address
		}
	}
	return passes
}

// unusableFlags mark addresses that are not in use yet, or not for long (linux/if_addr.h).
const unusableFlags = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED | unix.IFA_F_TEMPORARY

func addressOf(a netlink.Addr) netip.Addr {
	address, _ := netip.AddrFromSlice(a.IP)
	return address.Unmap()
}
