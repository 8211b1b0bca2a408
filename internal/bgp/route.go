package bgp

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// table is the desired routes of all peers.
type table struct {
	// tags of each prefix, sorted.
	tags  map[netip.Prefix][]string
	rules map[string]*api.Statement
	// withheld says of each peer that does not get all of its routes why.
	withheld map[netip.Addr]string
}

// newTable works out the tags and rules of routes for the usable peers, by name.
func newTable(routes []lb.Route, peers map[string]settings, hops nextHops) table {
	t := table{map[netip.Prefix][]string{}, map[string]*api.Statement{}, map[netip.Addr]string{}}
	known := map[string]string{} // tags of rules, since most routes have the same attributes
	for _, r := range routes {
		family := lb.FamilyOf(r.Prefix.Addr())
		attributes := fmt.Sprint(" ", family, r.LocalPref, r.Prepend, r.MED, r.Leaving, r.Communities)
		for _, name := range r.Peers {
			peer, usable := peers[name]
			if !usable || !peer.carries(family) {
				continue
			}
			var hop netip.Addr
			if family != lb.FamilyOf(peer.address) {
				if hop = hops[peer.address]; !hop.IsValid() {
					t.withheld[peer.address] = noNextHop(peer)
					continue
				}
			}
			tag, found := known[name+attributes]
			if !found {
				rule := newRule(peer, r, hop)
				tag = digits(rule.tag())
				known[name+attributes] = tag
				t.rules[tag] = rule.statement()
			}
			t.tags[r.Prefix.Masked()] = append(t.tags[r.Prefix.Masked()], tag)
		}
	}
	for _, tags := range t.tags {
		slices.Sort(tags)
	}
	return t
}

// paths reads the paths that GoBGP holds, each with its tags.
func (s *server) paths() (map[netip.Prefix][]string, error) {
	have := map[netip.Prefix][]string{}
	for _, family := range []gobgp.Family{gobgp.RF_IPv4_UC, gobgp.RF_IPv6_UC} {
		err := s.gobgp.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: family},
			func(nlri gobgp.NLRI, paths []*apiutil.Path) {
				if ip, ok := nlri.(*gobgp.IPAddrPrefix); ok && len(paths) > 0 {
					have[ip.Prefix] = tagsOf(paths[0])
				}
			})
		if err != nil {
			return nil, fmt.Errorf("list paths: %w", err)
		}
	}
	return have, nil
}

func tagsOf(path *apiutil.Path) []string {
	var tags []string
	for _, a := range path.Attrs {
		if large, ok := a.(*gobgp.PathAttributeLargeCommunities); ok {
			for _, c := range large.Values {
				tags = append(tags, c.String())
			}
		}
	}
	slices.Sort(tags)
	return tags
}

// addPath adds a path or replaces the one of the same prefix.
func (s *server) addPath(prefix netip.Prefix, tags []string) error {
	path, err := newPath(prefix, tags)
	if err == nil {
		_, err = s.gobgp.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{path}})
	}
	if err != nil {
		return fmt.Errorf("add route %s: %w", prefix, err)
	}
	return nil
}

func (s *server) deletePath(prefix netip.Prefix) error {
	path, err := newPath(prefix, nil)
	if err == nil {
		err = s.gobgp.DeletePath(apiutil.DeletePathRequest{Paths: []*apiutil.Path{path}})
	}
	if err != nil {
		return fmt.Errorf("delete route %s: %w", prefix, err)
	}
	return nil
}

func newPath(prefix netip.Prefix, tags []string) (*apiutil.Path, error) {
	nlri, err := gobgp.NewIPAddrPrefix(prefix)
	if err != nil {
		return nil, err
	}
	// GoBGP replaces an unspecified next hop by the local address of each session.
	family, nextHop := gobgp.RF_IPv4_UC, netip.IPv4Unspecified()
	if prefix.Addr().Is6() {
		family, nextHop = gobgp.RF_IPv6_UC, netip.IPv6Unspecified()
	}
	hop, err := gobgp.NewPathAttributeMpReachNLRI(family, []gobgp.PathNLRI{{NLRI: nlri}}, nextHop)
	if err != nil {
		return nil, err
	}
	large := make([]*gobgp.LargeCommunity, len(tags))
	for i, tag := range tags {
		if large[i], err = gobgp.ParseLargeCommunity(tag); err != nil {
			return nil, err
		}
	}
	// ORIGIN IGP: the prefix is interior to this AS (RFC 4271 section 5.1.1).
	// LOCAL_PREF 0, since no rule can set that: to GoBGP's policies 0 means none. All rules but those of leaving routes set it.
	attrs := []gobgp.PathAttributeInterface{gobgp.NewPathAttributeOrigin(gobgp.BGP_ORIGIN_ATTR_TYPE_IGP), hop, gobgp.NewPathAttributeLocalPref(0)}
	if len(large) > 0 {
		attrs = append(attrs, gobgp.NewPathAttributeLargeCommunities(large))
	}
	return &apiutil.Path{Family: family, Nlri: nlri, Attrs: attrs}, nil
}
