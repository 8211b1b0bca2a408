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

// defaultLocalPref is what routers take for a route without LOCAL_PREF.
const defaultLocalPref = 100

// gracefulShutdown is the community GRACEFUL_SHUTDOWN (RFC 8326 section 5).
var gracefulShutdown = lb.Community{A: 65535, B: 0}

// changeRoutes adds before it removes.
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

// confirm repeats what changed while the session came up, once it is up. GoBGP sends its table a moment before it takes
// the session for up, and sends no change in between, nor later: a route would be missing, or stay, for as long as the
// session. What changed before the router's OPEN was in time. To send a withdrawal again, GoBGP must have the route for
// an instant.
func (e *engine) confirm(state api.PeerState_SessionState) error {
	if state == api.PeerState_SESSION_STATE_OPENCONFIRM || len(e.unsure) == 0 {
		return nil
	}

	var gone []lb.Route
	var prefixes []netip.Prefix
	for prefix := range e.unsure {
		if _, wanted := e.routes[prefix]; !wanted {
			gone, prefixes = append(gone, lb.Route{Prefix: prefix}), append(prefixes, prefix)
		}
	}

	clear(e.unsure)
	if !e.up {
		return nil
	}

	return errors.Join(e.put(gone), e.remove(prefixes), e.gobgp.ResetPeer(context.Background(), &api.ResetPeerRequest{
		Address: e.settings.Address.String(), Soft: true, Direction: api.ResetPeerRequest_DIRECTION_OUT,
	}))
}

// put places routes that are wanted, or places them again.
func (e *engine) put(routes []lb.Route) error {
	var paths []*apiutil.Path
	var without []netip.Prefix
	var last attributes
	for _, r := range routes {
		hop, ok := e.nextHop(r.Prefix)
		if !ok {
			without = append(without, r.Prefix)
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

	return e.remove(without)
}

// remove removes routes, of which GoBGP need not have all.
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

// attributes are those of a route, but for NEXT_HOP. Paths share them: GoBGP changes none.
type attributes struct {
	route lb.Route
	list  []gobgp.PathAttributeInterface
}

// attributes makes the attributes of a route. GoBGP itself adds our AS once, and leaves LOCAL_PREF out, for a router of
// another AS (RFC 4271 sections 5.1.2 and 5.1.5).
func (e *engine) attributes(r lb.Route) attributes {
	pref, communities := cmp.Or(r.LocalPref, defaultLocalPref), r.Communities
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
	if s := e.settings; r.Prepend > 0 && s.LocalASN != s.PeerASN {
		ours := slices.Repeat([]uint32{s.LocalASN}, int(r.Prepend))
		list = append(
			list,
			gobgp.NewPathAttributeAsPath(
				[]gobgp.AsPathParamInterface{gobgp.NewAs4PathParam(gobgp.BGP_ASPATH_ATTR_TYPE_SEQ, ours)},
			),
		)
	}

	if r.MED.Sent {
		list = append(list, gobgp.NewPathAttributeMultiExitDisc(r.MED.Value))
	}

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

	return attributes{r, list}
}

// path makes the path of a route. GoBGP replaces an unspecified next hop, for which the zero Addr stands, by the local
// address of the session.
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

// nextHop returns the next hop of a route; the zero Addr stands for this node's address on the session. Without one,
// the route is withheld: GoBGP itself knows the session's address only.
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
			why = fmt.Sprintf(
				"this node has no %s address on the link, and the router does not take %s next hops for them (RFC 8950)",
				f,
				lb.IPv6,
			)
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

// followHop finds the next hop of routes of the other family: this node's address of that family on the session's link.
// If it changed, they are placed again. While it cannot be found out, it stays, and the next order looks again. There
// is none as long as it depends on what the router did not say yet.
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

// localAddress is the address from which this node dials a peer, unless there is no route to it at present. It looks at
// the routing table, and sends nothing.
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
		if a.LinkIndex != link ||
			lb.FamilyOf(address) != family ||
			!address.IsGlobalUnicast() ||
			a.Flags&unusableFlags != 0 {
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
