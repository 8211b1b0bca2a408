package engine

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// defaultLocalPref is what routers take for a route without LOCAL_PREF.
const defaultLocalPref = 100

// gracefulShutdown is the community GRACEFUL_SHUTDOWN (RFC 8326 section 5).
var gracefulShutdown = lb.Community{A: 65535, B: 0}

// changeRoutes adds before it removes.
func (e *engine) changeRoutes(c wire.Change) error {
	for _, r := range c.Put {
		e.routes[r.Prefix] = r
	}
	for _, p := range c.Remove {
		delete(e.routes, p)
	}
	return errors.Join(e.put(c.Put), e.remove(c.Remove))
}

// put places routes that are wanted, or places them again.
func (e *engine) put(routes []lb.Route) error {
	var paths []*apiutil.Path
	var without []netip.Prefix
	var errs []error
	var last attributes
	for _, r := range routes {
		hop, ok := e.nextHop(r.Prefix)
		if !ok {
			without = append(without, r.Prefix)
			continue
		}
		if !last.of(r) {
			last = e.attributes(r)
		}
		p, err := last.path(r.Prefix, hop)
		if err != nil {
			errs = append(errs, fmt.Errorf("route %s: %w", r.Prefix, err))
			continue
		}
		paths = append(paths, p)
		e.placed[r.Prefix] = true
	}
	if len(paths) > 0 {
		_, err := e.gobgp.AddPath(apiutil.AddPathRequest{Paths: paths})
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	e.failed = e.failed || err != nil
	return errors.Join(err, e.remove(without))
}

// remove removes routes, of which GoBGP need not have all.
func (e *engine) remove(prefixes []netip.Prefix) error {
	var paths []*apiutil.Path
	for _, prefix := range prefixes {
		if !e.placed[prefix] {
			continue
		}
		delete(e.placed, prefix)
		if p, err := e.attributes(lb.Route{}).path(prefix, netip.Addr{}); err == nil { // as it was when it was placed
			paths = append(paths, p)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	if err := e.gobgp.DeletePath(apiutil.DeletePathRequest{Paths: paths}); err != nil {
		e.failed = true
		return fmt.Errorf("remove routes: %w", err)
	}
	return nil
}

// mendRoutes compares the routes that GoBGP has with those that it should have. After a failure all are placed again.
func (e *engine) mendRoutes() error {
	have, err := e.paths()
	if err != nil {
		return err
	}
	var missing []lb.Route
	var surplus []netip.Prefix
	for prefix, r := range e.routes {
		if _, ok := e.nextHop(prefix); ok && (!have[prefix] || e.failed) {
			missing = append(missing, r)
		}
	}
	for prefix := range have {
		if _, wanted := e.routes[prefix]; !wanted {
			surplus = append(surplus, prefix)
		}
	}
	e.failed = false
	e.placed = have
	e.counters.RouteRepairs += uint64(len(missing) + len(surplus))
	return errors.Join(e.put(missing), e.remove(surplus))
}

// paths reads the prefixes that GoBGP has.
func (e *engine) paths() (map[netip.Prefix]bool, error) {
	have := make(map[netip.Prefix]bool, len(e.placed))
	for _, family := range []gobgp.Family{gobgp.RF_IPv4_UC, gobgp.RF_IPv6_UC} {
		err := e.gobgp.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: family},
			func(nlri gobgp.NLRI, paths []*apiutil.Path) {
				if ip, ok := nlri.(*gobgp.IPAddrPrefix); ok && len(paths) > 0 {
					have[ip.Prefix] = true
				}
			})
		if err != nil {
			return nil, fmt.Errorf("list paths: %w", err)
		}
	}
	return have, nil
}

// attributes are those of a route, but for NEXT_HOP. Paths share them: GoBGP changes none.
type attributes struct {
	route lb.Route
	list  []gobgp.PathAttributeInterface
}

// of reports whether a route has these attributes.
func (a attributes) of(r lb.Route) bool {
	return a.list != nil && a.route.LocalPref == r.LocalPref && a.route.Prepend == r.Prepend && a.route.MED == r.MED &&
		a.route.Leaving == r.Leaving && slices.Equal(a.route.Communities, r.Communities)
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
	list := []gobgp.PathAttributeInterface{gobgp.NewPathAttributeOrigin(gobgp.BGP_ORIGIN_ATTR_TYPE_IGP), gobgp.NewPathAttributeLocalPref(pref)}
	if s := e.settings; r.Prepend > 0 && s.LocalASN != s.PeerASN {
		ours := slices.Repeat([]uint32{s.LocalASN}, int(r.Prepend))
		list = append(list, gobgp.NewPathAttributeAsPath([]gobgp.AsPathParamInterface{gobgp.NewAs4PathParam(gobgp.BGP_ASPATH_ATTR_TYPE_SEQ, ours)}))
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
	family := gobgp.RF_IPv4_UC
	if prefix.Addr().Is6() {
		family = gobgp.RF_IPv6_UC
	}
	if !hop.IsValid() {
		hop = netip.IPv4Unspecified()
		if prefix.Addr().Is6() {
			hop = netip.IPv6Unspecified()
		}
	}
	reach, err := gobgp.NewPathAttributeMpReachNLRI(family, []gobgp.PathNLRI{{NLRI: nlri}}, hop)
	if err != nil {
		return nil, err
	}
	return &apiutil.Path{Family: family, Nlri: nlri, Attrs: append(slices.Clip(a.list), reach)}, nil
}
