package bgp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// nextHops are the next hops of the routes whose family is not their session's: this node's address of that family on
// the session's link. GoBGP itself knows the session's address only.
type nextHops map[netip.Addr]netip.Addr

// noNextHop says why a session that should carry both families carries its own only.
func noNextHop(s settings) string {
	text := fmt.Sprintf("%s routes are not sent: this node has no %s address on the link", s.other(), s.other())
	if s.other() == lb.IPv4 {
		text += fmt.Sprintf(", and the router does not take %s next hops for them (RFC 8950)", lb.IPv6)
	}
	return text
}

// other is the family of a session that carries both which is not its own.
func (s settings) other() lb.Family {
	if s.address.Is4() {
		return lb.IPv6
	}
	return lb.IPv4
}

// findNextHops finds the next hops for sessions with both families. A peer without one gets the routes of its own
// family.
func findNextHops(peers map[string]settings, have []*api.Peer) nextHops {
	out := nextHops{}
	for _, s := range peers {
		if !s.dualStack {
			continue
		}
		local := localAddress(s)
		hop := onLinkOf(local, s.other())
		if !hop.IsValid() && s.other() == lb.IPv4 && takesIPv6NextHops(have, s.address) {
			hop = local
		}
		if hop.IsValid() {
			out[s.address] = hop
		}
	}
	return out
}

// routeTime bounds the look at the routing table, which sends nothing.
const routeTime = time.Second

// localAddress is the address from which this node dials a peer.
func localAddress(s settings) netip.Addr {
	if s.source.IsValid() {
		return s.source
	}
	ctx, cancel := context.WithTimeout(context.Background(), routeTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", net.JoinHostPort(s.address.String(), strconv.Itoa(int(s.port))))
	if err != nil {
		return netip.Addr{} // there is no route to it at present
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
}

// onLinkOf is the first address of a family on the link that has another address, of those that last, if there is one.
// Link-local ones do not count: a router may pass the route on.
func onLinkOf(local netip.Addr, family lb.Family) netip.Addr {
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return netip.Addr{}
	}
	link := 0
	for _, a := range all {
		if addressOf(a) == local {
			link = a.LinkIndex
		}
	}
	var lasts, passes netip.Addr
	for _, a := range all {
		is := addressOf(a)
		if a.LinkIndex != link || lb.FamilyOf(is) != family || !is.IsGlobalUnicast() || a.Flags&unusableFlags != 0 {
			continue
		}
		if !passes.IsValid() {
			passes = is
		}
		if !lasts.IsValid() && a.Flags&unix.IFA_F_PERMANENT != 0 {
			lasts = is
		}
	}
	if lasts.IsValid() {
		return lasts
	}
	return passes
}

// unusableFlags mark addresses that are not in use yet, or not for long (linux/if_addr.h).
const unusableFlags = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED | unix.IFA_F_TEMPORARY

func addressOf(a netlink.Addr) netip.Addr {
	is, _ := netip.AddrFromSlice(a.IP)
	return is.Unmap()
}

// takesIPv6NextHops reports whether a router has said that it takes IPv6 next hops for IPv4 routes (RFC 8950 section 4).
func takesIPv6NextHops(have []*api.Peer, peer netip.Addr) bool {
	for _, p := range have {
		if readSettings(p).address != peer {
			continue
		}
		capabilities, err := apiutil.UnmarshalCapabilities(p.State.RemoteCap)
		if err != nil {
			return false
		}
		for _, c := range capabilities {
			if e, ok := c.(*gobgp.CapExtendedNexthop); ok && slices.ContainsFunc(e.Tuples, func(t *gobgp.CapExtendedNexthopTuple) bool {
				return t.NLRIAFI == gobgp.AFI_IP && t.NLRISAFI == gobgp.SAFI_UNICAST && t.NexthopAFI == gobgp.AFI_IP6
			}) {
				return true
			}
		}
	}
	return false
}
