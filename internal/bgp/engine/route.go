package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// defaultLocalPref is the value that routers assume for a route without LOCAL_PREF.
const defaultLocalPref = 100

// gracefulShutdown is the community GRACEFUL_SHUTDOWN (RFC 8326 section 5).
var gracefulShutdown = lb.Community{A: 65535, B: 0}

// changeRoutes adds and removes the routes of an order. It adds before it removes.
func (e *engine) changeRoutes(o lb.Order) error {
	for _, r := range o.Put {
		e.routes[r.Prefix] = r
	}

	for _, p := range o.Remove {
		delete(e.routes, p)
	}

	if !e.up {
		for _, r := range o.Put {
			e.unsure[r.Prefix] = true
		}

		for _, p := range o.Remove {
			e.unsure[p] = true
		}
	}

	return errors.Join(e.put(o.Put), e.remove(o.Remove))
}

// confirm sends the changes again that were made while the session came up. GoBGP sends its table a moment before its
// state is established, and loses the changes in between: a route would be missing, or stay, until the session ends. A
// change before the router's OPEN is in time. For a withdrawal to be sent again, GoBGP must have the route for an
// instant.
func (e *engine) confirm(state api.PeerState_SessionState) error {
	if state == api.PeerState_SESSION_STATE_OPENCONFIRM || len(e.unsure) == 0 {
		return nil
	}

	var withdrawn []lb.Route
	var prefixes []netip.Prefix
	for prefix := range e.unsure {
		if _, ok := e.routes[prefix]; !ok {
			withdrawn = append(withdrawn, lb.Route{Prefix: prefix})
			prefixes = append(prefixes, prefix)
		}
	}

	clear(e.unsure)
	if !e.up {
		return nil
	}

	err := errors.Join(e.put(withdrawn), e.remove(prefixes))
	sendAgain := &api.ResetPeerRequest{
		Address:   e.settings.Address.String(),
		Soft:      true,
		Direction: api.ResetPeerRequest_DIRECTION_OUT,
	}
	return errors.Join(err, e.gobgp.ResetPeer(context.Background(), sendAgain))
}

// put gives GoBGP routes, or gives them again. It removes the routes that have no next hop.
func (e *engine) put(routes []lb.Route) error {
	var paths []*apiutil.Path
	var withoutHop []netip.Prefix
	var last attributes
	for _, r := range routes {
		hop, ok := e.nextHop(r.Prefix)
		if !ok {
			withoutHop = append(withoutHop, r.Prefix)
			continue
		}

		if last.list == nil || !last.route.SameAttributes(r) {
			last = e.attributes(r)
		}

		p, err := last.path(r.Prefix, hop)
		if err != nil {
			return fmt.Errorf("route %s: %w", r.Prefix, err)
		}

		paths = append(paths, p)
	}

	if len(paths) > 0 {
		if _, err := e.gobgp.AddPath(apiutil.AddPathRequest{Paths: paths}); err != nil {
			return fmt.Errorf("place routes: %w", err)
		}
	}

	return e.remove(withoutHop)
}

// remove removes routes from GoBGP, which need not have all of them.
func (e *engine) remove(prefixes []netip.Prefix) error {
	if len(prefixes) == 0 {
		return nil
	}

	var paths []*apiutil.Path
	for _, prefix := range prefixes {
		p, err := e.attributes(lb.Route{}).path(prefix, netip.Addr{})
		if err != nil {
			return fmt.Errorf("route %s: %w", prefix, err)
		}

		paths = append(paths, p)
	}

	if err := e.gobgp.DeletePath(apiutil.DeletePathRequest{Paths: paths}); err != nil {
		return fmt.Errorf("remove routes: %w", err)
	}

	return nil
}

// attributes are the attributes of a route without NEXT_HOP. Paths share them, because GoBGP does not change them.
type attributes struct {
	route lb.Route
	list  []gobgp.PathAttributeInterface
}

// attributes returns the attributes of a route. For a router of another AS, GoBGP itself adds this node's AS once and
// omits LOCAL_PREF (RFC 4271 sections 5.1.2 and 5.1.5).
func (e *engine) attributes(r lb.Route) attributes {
	pref := cmp.Or(r.LocalPref, defaultLocalPref)
	communities := r.Communities
	if r.Leaving {
		pref = 0
		if !slices.Contains(communities, gracefulShutdown) {
			communities = append(slices.Clone(communities), gracefulShutdown)
		}
	}

	// ORIGIN IGP: the prefix is interior to this AS (RFC 4271 section 5.1.1).
	list := []gobgp.PathAttributeInterface{
		gobgp.NewPathAttributeOrigin(gobgp.BGP_ORIGIN_ATTR_TYPE_IGP),
		gobgp.NewPathAttributeLocalPref(pref),
	}
	if r.Prepend > 0 && e.settings.LocalASN != e.settings.PeerASN {
		asns := slices.Repeat([]uint32{e.settings.LocalASN}, int(r.Prepend))
		sequence := gobgp.NewAs4PathParam(gobgp.BGP_ASPATH_ATTR_TYPE_SEQ, asns)
		list = append(list, gobgp.NewPathAttributeAsPath([]gobgp.AsPathParamInterface{sequence}))
	}

	if r.MED.Sent {
		list = append(list, gobgp.NewPathAttributeMultiExitDisc(r.MED.Value))
	}

	return attributes{r, append(list, communityAttributes(communities)...)}
}

// communityAttributes returns the attributes for communities (RFC 1997) and large communities (RFC 8092).
func communityAttributes(communities []lb.Community) (list []gobgp.PathAttributeInterface) {
	var plain []uint32
	var large []*gobgp.LargeCommunity
	for _, c := range communities {
		if c.Large {
			large = append(large, &gobgp.LargeCommunity{ASN: c.A, LocalData1: c.B, LocalData2: c.C})
			continue
		}

		plain = append(plain, c.A<<16|c.B)
	}

	if len(plain) > 0 {
		list = append(list, gobgp.NewPathAttributeCommunities(plain))
	}

	if len(large) > 0 {
		list = append(list, gobgp.NewPathAttributeLargeCommunities(large))
	}
	return list
}

// path returns GoBGP's path of a route. For the zero Addr as the next hop, GoBGP uses the local address of the session.
func (a attributes) path(prefix netip.Prefix, hop netip.Addr) (*apiutil.Path, error) {
	nlri, err := gobgp.NewIPAddrPrefix(prefix)
	if err != nil {
		return nil, err
	}

	family, own := gobgp.RF_IPv4_UC, netip.IPv4Unspecified()
	if prefix.Addr().Is6() {
		family, own = gobgp.RF_IPv6_UC, netip.IPv6Unspecified()
	}

	if !hop.IsValid() {
		hop = own
	}

	reach, err := gobgp.NewPathAttributeMpReachNLRI(family, []gobgp.PathNLRI{{NLRI: nlri}}, hop)
	if err != nil {
		return nil, err
	}

	return &apiutil.Path{Family: family, Nlri: nlri, Attrs: append(slices.Clip(a.list), reach)}, nil
}

// nextHop returns the next hop of a route; the zero Addr for this node's address on the session. Without a next hop the
// route is withheld.
func (e *engine) nextHop(prefix netip.Prefix) (hop netip.Addr, ok bool) {
	if lb.FamilyOf(prefix.Addr()) == lb.FamilyOf(e.settings.Address) {
		return netip.Addr{}, true
	}
	return e.hop, e.hop.IsValid()
}

// setCarried sets the families and the number of routes that an established session carries, and the reason why it does
// not carry all.
func (e *engine) setCarried(out *lb.Session) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		n := 0
		for prefix := range e.routes {
			if lb.FamilyOf(prefix.Addr()) == f {
				n++
			}
		}

		reason := ""
		switch {
		case !e.router.takes(f):
			reason = fmt.Sprintf("the router has not activated %s unicast for this node", f)
		case f == lb.FamilyOf(e.settings.Address) || e.hop.IsValid():
			out.Families = append(out.Families, f)
			out.Advertised += n
		case f == lb.IPv4:
			reason = fmt.Sprintf("this node has no %s address on the link, "+
				"and the router does not take %s next hops for them (RFC 8950)", f, lb.IPv6)
		default:
			reason = fmt.Sprintf("this node has no %s address on the link", f)
		}

		if n > 0 && reason != "" && out.Withheld == "" {
			out.Withheld = fmt.Sprintf("%s routes are not sent: %s", f, reason)
		}
	}
}

// otherFamily returns the family that is not the session's own.
func otherFamily(s lb.Peer) lb.Family {
	if s.Address.Is4() {
		return lb.IPv6
	}
	return lb.IPv4
}

// updateHop updates the next hop of routes of the other family: this node's address of that family on the session's
// link. If it has changed, the routes are put again. On an error the next hop stays until the next order.
func (e *engine) updateHop() error {
	hop, err := e.findHop(e.router&extendedNextHop != 0)
	if err == nil && !e.up {
		// The router's capabilities are unknown: there is no next hop while it depends on them.
		var extended netip.Addr
		extended, err = e.findHop(true)
		if extended != hop {
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
		if lb.FamilyOf(prefix.Addr()) == otherFamily(e.settings) {
			others = append(others, r)
		}
	}

	return e.put(others)
}

// findHop returns the next hop of routes of the other family; the zero Addr if there is none. The argument reports
// whether the router accepts IPv6 next hops for IPv4 routes (RFC 8950).
func (e *engine) findHop(takes bool) (netip.Addr, error) {
	if !e.settings.DualStack {
		return netip.Addr{}, nil
	}

	local, ok := localAddress(e.settings)
	if !ok {
		return e.hop, nil
	}

	ours := local.WithZone("")
	takes = takes && otherFamily(e.settings) == lb.IPv4
	if takes && ours.IsLinkLocalUnicast() {
		return ours, nil // the router may have no IPv4 address on the link
	}

	all, err := e.addresses()
	if err != nil { // a change during the dump is an error too: the list may be incomplete
		return netip.Addr{}, fmt.Errorf("read this node's addresses: %w", err)
	}

	hop := onLinkOf(all, local, otherFamily(e.settings))
	if !hop.IsValid() && takes {
		return ours, nil
	}

	return hop, nil
}

// localAddress returns the address from which this node dials a peer. It fails without a route. It reads the routing
// table by a UDP socket, and sends nothing.
func localAddress(s lb.Peer) (local netip.Addr, ok bool) {
	if s.SourceAddress.IsValid() {
		return s.SourceAddress, true
	}

	conn, err := net.Dial("udp", netip.AddrPortFrom(s.Address, s.Port).String())
	if err != nil {
		return netip.Addr{}, false
	}

	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), true
}

// onLinkOf returns an address of a family on the link that has the local address; the zero Addr if there is none. It
// prefers the first permanent address. Link-local addresses do not count, because a router may pass the route on.
func onLinkOf(all []netlink.Addr, local netip.Addr, family lb.Family) netip.Addr {
	link := 0
	for _, a := range all {
		if addressOf(a) == local {
			link = a.LinkIndex
		}
	}

	if local.Zone() != "" { // other links may have the same address
		if i, err := net.InterfaceByName(local.Zone()); err == nil {
			link = i.Index
		}
	}

	var temporary netip.Addr
	for _, a := range all {
		address := addressOf(a)
		if a.LinkIndex != link ||
			lb.FamilyOf(address) != family ||
			!address.IsGlobalUnicast() ||
			a.Flags&unusableFlags != 0 {
			continue
		}

		if a.Flags&unix.IFA_F_PERMANENT != 0 {
			return address
		}

		if !temporary.IsValid() {
			temporary = address
		}
	}

	return temporary
}

// unusableFlags mark addresses that are not in use yet, or soon will not be (linux/if_addr.h).
const unusableFlags = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED | unix.IFA_F_TEMPORARY

// addressOf returns the IP address of a link's address.
func addressOf(a netlink.Addr) netip.Addr {
	address, _ := netip.AddrFromSlice(a.IP)
	return address.Unmap()
}
