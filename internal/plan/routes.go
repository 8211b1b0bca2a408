package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// routeTable is the routes that a node advertises.
type routeTable struct {
	// ads are all advertisements, oldest first.
	ads []lb.BGPAdvertisement
	// routes has the attributes of each prefix for each peer.
	routes map[netip.Prefix]map[string]*attributes
	// conflicts has a sentence for each prefix to which advertisements give two values of an attribute. The values of
	// the oldest one are used: without the route the Service would fail.
	conflicts map[netip.Prefix]string
}

// attributes of a route to a peer: what the oldest advertisement gives, and the communities of all.
type attributes struct {
	// oldest is the index of the oldest advertisement so far.
	oldest      int
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

func (t routeTable) add(one routeTo) {
	prefix, peer, index := one.prefix, one.peer, one.ad
	ad := &t.ads[index]
	byPeer := t.routes[prefix]
	if byPeer == nil {
		byPeer = map[string]*attributes{}
		t.routes[prefix] = byPeer
	}
	r := byPeer[peer]
	if r == nil {
		r = &attributes{oldest: index}
		byPeer[peer] = r
	}
	r.staying = r.staying || !one.leaving
	older, younger := &t.ads[min(r.oldest, index)], &t.ads[max(r.oldest, index)]
	r.oldest = min(r.oldest, index)
	if older.LocalPref != younger.LocalPref || older.MED != younger.MED || older.Prepend != younger.Prepend {
		t.conflicts[prefix] = fmt.Sprintf("BGPAdvertisement %q is older than %q "+
			"and gives %s another localPref, med or asPathPrepend, which is used",
			older.Name, younger.Name, prefix)
	}
	for _, c := range ad.Communities {
		if !slices.Contains(r.communities, c) {
			r.communities = append(r.communities, c)
		}
	}
}

// advertise plans the routes with these prefixes that are not as in the last plan.
func (p *planner) advertise(last *planner) {
	prefixes := p.changes.prefixes
	if len(prefixes) == 0 {
		return
	}
	t := routeTable{p.state.BGPAdvertisements, map[netip.Prefix]map[string]*attributes{}, map[netip.Prefix]string{}}
	for _, s := range p.state.Services {
		for _, r := range p.routesOf[s.Key] {
			if prefixes[r.prefix] {
				t.add(r)
			}
		}
	}
	maps.DeleteFunc(p.conflicts, func(prefix netip.Prefix, _ string) bool { return prefixes[prefix] })
	maps.Copy(p.conflicts, t.conflicts)
	routes := keptAll(last.plan.Routes, t.lists(), func(a, b []lb.Route) bool { return reflect.DeepEqual(a, b) })
	p.plan.Routes = last.plan.Routes.With(
		maps.Keys(prefixes),
		func(at netip.Prefix) (*[]lb.Route, bool) { return routes[at], routes[at] != nil },
	)
}

// contradict puts a sentence on each Service of whose addresses a route has two values of an attribute.
func (p *planner) contradict() {
	if len(p.conflicts) == 0 {
		return
	}
	prefixes := slices.SortedFunc(maps.Keys(p.conflicts), netip.Prefix.Compare)
	for _, s := range p.state.Services {
		at := slices.IndexFunc(
			prefixes,
			func(prefix netip.Prefix) bool { return slices.ContainsFunc(s.Addresses, prefix.Contains) },
		)
		if at >= 0 {
			v := *cmp.Or(p.verdicts[s.Key], p.plan.Verdicts.Of(s.Key))
			v.BGP.Reason, v.BGP.Message = lb.ConflictingAdvertisements, p.conflicts[prefixes[at]]
			p.dated[s.Key] = true
			p.judge(v)
		}
	}
}

// lists returns the routes of each prefix, each with all peers for which its attributes are the same.
func (t routeTable) lists() map[netip.Prefix][]lb.Route {
	out := make(map[netip.Prefix][]lb.Route, len(t.routes))
	for prefix, byPeer := range t.routes {
		for _, peer := range slices.Sorted(maps.Keys(byPeer)) {
			r, list := byPeer[peer], out[prefix]
			slices.SortFunc(r.communities, lb.Community.Compare)
			ad := &t.ads[r.oldest]
			route := lb.Route{
				Prefix:      prefix,
				Peers:       []string{peer},
				LocalPref:   ad.LocalPref,
				MED:         ad.MED,
				Prepend:     ad.Prepend,
				Leaving:     !r.staying,
				Communities: r.communities,
			}
			if same := slices.IndexFunc(list, route.SameAttributes); same >= 0 {
				list[same].Peers = append(list[same].Peers, peer)
			} else {
				out[prefix] = append(list, route)
			}
		}
	}
	return out
}
