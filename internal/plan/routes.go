package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// routeTable is the routes that a node advertises.
type routeTable struct {
	// ads are all advertisements, oldest first.
	ads []lb.BGPAdvertisement
	// routes has the attributes of each prefix for each peer.
	routes map[netip.Prefix]map[string]*attributes
}

// attributes of a route to a peer: what the oldest advertisement gives, and the communities of all.
type attributes struct {
	// oldest is the index of the oldest advertisement so far.
	oldest int
	// contrary is the index of the oldest advertisement with other values; -1 for none.
	contrary    int
	communities []lb.Community
	// staying: this node does not leave all addresses inside.
	staying bool
}

// routeTo is one advertisement of a prefix to a peer.
type routeTo struct {
	prefix netip.Prefix
	peer   string
	// ad is the index of the advertisement.
	ad      int
	leaving bool
}

// newRouteTable returns a table without routes.
func newRouteTable(ads []lb.BGPAdvertisement) routeTable {
	return routeTable{
		ads:    ads,
		routes: map[netip.Prefix]map[string]*attributes{},
	}
}

// add adds one advertisement of a prefix to a peer.
func (t routeTable) add(one routeTo) {
	byPeer := t.routes[one.prefix]
	if byPeer == nil {
		byPeer = map[string]*attributes{}
		t.routes[one.prefix] = byPeer
	}

	r := byPeer[one.peer]
	if r == nil {
		r = &attributes{
			oldest:   one.ad,
			contrary: -1,
		}
		byPeer[one.peer] = r
	}

	r.staying = r.staying || !one.leaving
	differs := !haveSameValues(&t.ads[r.oldest], &t.ads[one.ad])
	isFirst := r.contrary < 0 || one.ad < r.contrary
	switch {
	case differs && one.ad < r.oldest:
		r.contrary = r.oldest
	case differs && isFirst:
		r.contrary = one.ad
	}

	r.oldest = min(r.oldest, one.ad)
	for _, c := range t.ads[one.ad].Communities {
		if !slices.Contains(r.communities, c) {
			r.communities = append(r.communities, c)
		}
	}
}

// haveSameValues reports whether two advertisements give a route the same values of the attributes that have only one.
func haveSameValues(a, b *lb.BGPAdvertisement) bool {
	return a.LocalPref == b.LocalPref &&
		a.MED == b.MED &&
		a.Prepend == b.Prepend
}

// conflicts returns a sentence for each prefix to which advertisements give two values of an attribute. The values of
// the oldest one are used: without the route the Service would fail.
func (t routeTable) conflicts() map[netip.Prefix]string {
	out := map[netip.Prefix]string{}
	for prefix, byPeer := range t.routes {
		var first *attributes
		for _, r := range byPeer {
			isFirst := first == nil || r.compare(first) < 0
			if r.contrary >= 0 && isFirst {
				first = r
			}
		}
		if first == nil {
			continue
		}

		out[prefix] = fmt.Sprintf(
			"BGPAdvertisement %q is older than %q and gives %s another localPref, med or asPathPrepend, which is used",
			t.ads[first.oldest].Name,
			t.ads[first.contrary].Name,
			prefix,
		)
	}

	return out
}

// compare orders attributes by the age of the advertisements that contradict each other.
func (r *attributes) compare(o *attributes) int {
	return cmp.Or(
		cmp.Compare(r.oldest, o.oldest),
		cmp.Compare(r.contrary, o.contrary),
	)
}

// lists returns the routes of each prefix, each with all peers for which its attributes are the same.
func (t routeTable) lists() map[netip.Prefix][]lb.Route {
	out := make(map[netip.Prefix][]lb.Route, len(t.routes))
	for prefix, byPeer := range t.routes {
		for _, peer := range slices.Sorted(maps.Keys(byPeer)) {
			out[prefix] = addPeer(out[prefix], t.route(prefix, peer))
		}
	}
	return out
}

// route returns the route of a prefix to a peer.
func (t routeTable) route(prefix netip.Prefix, peer string) lb.Route {
	r := t.routes[prefix][peer]
	slices.SortFunc(r.communities, lb.Community.Compare)
	ad := &t.ads[r.oldest]

	return lb.Route{
		Prefix:      prefix,
		Peers:       []string{peer},
		LocalPref:   ad.LocalPref,
		MED:         ad.MED,
		Prepend:     ad.Prepend,
		Leaving:     !r.staying,
		Communities: r.communities,
	}
}

// addPeer adds a route to a list: to the route there that has the same attributes, if there is one.
func addPeer(list []lb.Route, route lb.Route) []lb.Route {
	same := slices.IndexFunc(list, route.SameAttributes)
	if same < 0 {
		return append(list, route)
	}

	list[same].Peers = append(list[same].Peers, route.Peers...)
	return list
}

// contradicted returns the sentence on an address of whose routes one has two values of an attribute; "" for none.
// Prefixes are the keys of conflicts, ordered.
func contradicted(s *lb.Service, prefixes []netip.Prefix, conflicts map[netip.Prefix]string) string {
	for _, prefix := range prefixes {
		if slices.ContainsFunc(s.Addresses, prefix.Contains) {
			return conflicts[prefix]
		}
	}
	return ""
}
