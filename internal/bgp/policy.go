package bgp

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	exportPolicy = "export"
	importPolicy = "import"
	// tagASN is the global administrator of tags: the last AS number, which is
	// reserved (RFC 7300), so no operator's large community looks like a tag.
	tagASN = 4294967295
	// defaultLocalPref is what routers take for a route without LOCAL_PREF.
	defaultLocalPref = 100
)

// gracefulShutdown is the community GRACEFUL_SHUTDOWN (RFC 8326 section 5).
var gracefulShutdown = lb.Community{A: 65535, B: 0}

// rule has the attributes that one peer receives with the routes of the rule's tag.
type rule struct {
	peer netip.Addr
	// localASN is the AS to prepend, this often beyond the once that GoBGP does itself.
	localASN uint32
	prepend  uint8
	// localPref 0 leaves LOCAL_PREF as newPath sets it, which is 0.
	localPref uint32
	med       lb.MED
	// external: no route goes out if the router turns out to be of our own AS.
	external bool
	// nextHop replaces the session's own address, if it is valid.
	nextHop     netip.Addr
	communities []lb.Community
}

// newRule returns the rule for a route to a peer. AS_PATH gets our AS for peers of another AS only (RFC 4271 section
// 5.1.2).
func newRule(p settings, r lb.Route, nextHop netip.Addr) rule {
	out := rule{
		peer: p.address, localASN: p.localASN, localPref: cmp.Or(r.LocalPref, defaultLocalPref), med: r.MED,
		external: p.peerASN == 0, nextHop: nextHop, communities: r.Communities,
	}
	if r.Leaving {
		out.localPref = 0
		if !slices.Contains(r.Communities, gracefulShutdown) {
			out.communities = append(slices.Clone(r.Communities), gracefulShutdown)
		}
	}
	if p.localASN != p.peerASN {
		out.prepend = r.Prepend
	}
	return out
}

// tag derives from the rule's content, so that a tag never changes its meaning
// and a change of content always changes the path that carries the tag.
func (r rule) tag() lb.Community {
	h := fnv.New64a()
	fmt.Fprintf(h, "%+v", r)
	sum := h.Sum(nil)
	return lb.Community{
		Large: true, A: tagASN,
		B: binary.BigEndian.Uint32(sum[:4]), C: binary.BigEndian.Uint32(sum[4:]),
	}
}

// statement returns the rule as GoBGP's type: if neighbour and tag match, accept and replace the tags.
func (r rule) statement() *api.Statement {
	actions := &api.Actions{
		RouteAction:    api.RouteAction_ROUTE_ACTION_ACCEPT,
		LargeCommunity: &api.CommunityAction{Type: api.CommunityAction_TYPE_REPLACE},
	}
	var plain []string
	for _, c := range r.communities {
		if c.Large {
			actions.LargeCommunity.Communities = append(actions.LargeCommunity.Communities, digits(c))
			continue
		}
		plain = append(plain, digits(c))
	}
	if len(plain) > 0 {
		actions.Community = &api.CommunityAction{Type: api.CommunityAction_TYPE_REPLACE, Communities: plain}
	}
	if r.localPref != 0 {
		actions.LocalPref = &api.LocalPrefAction{Value: r.localPref}
	}
	if r.prepend != 0 {
		actions.AsPrepend = &api.AsPrependAction{Asn: r.localASN, Repeat: uint32(r.prepend)}
	}
	if r.med.Sent {
		actions.Med = &api.MedAction{Type: api.MedAction_TYPE_REPLACE, Value: int64(r.med.Value)}
	}
	if r.nextHop.IsValid() {
		actions.Nexthop = &api.NexthopAction{Address: r.nextHop.String()}
	}
	tag := digits(r.tag())
	conditions := &api.Conditions{
		NeighborSet:       &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: r.peer.String()},
		LargeCommunitySet: &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: tag},
	}
	if r.external {
		// GoBGP has put our AS into the path by now, unless the router is of our AS.
		conditions.AsPathLength = &api.AsPathLength{Type: api.Comparison_COMPARISON_GE, Length: 1}
	}
	return &api.Statement{Name: tag, Conditions: conditions, Actions: actions}
}

// digits formats a community as GoBGP parses it, without the word "large".
func digits(c lb.Community) string {
	if c.Large {
		return fmt.Sprintf("%d:%d:%d", c.A, c.B, c.C)
	}
	return fmt.Sprintf("%d:%d", c.A, c.B)
}

// setUpPolicies installs a policy for each direction; everything not accepted is rejected.
func (s *server) setUpPolicies(ctx context.Context) error {
	if err := s.setStatements(ctx, nil); err != nil {
		return err
	}
	for name, direction := range map[string]api.PolicyDirection{
		importPolicy: api.PolicyDirection_POLICY_DIRECTION_IMPORT,
		exportPolicy: api.PolicyDirection_POLICY_DIRECTION_EXPORT,
	} {
		if err := s.gobgp.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
			Direction:     direction,
			Policies:      []*api.Policy{{Name: name}},
			DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT,
		}}); err != nil {
			return fmt.Errorf("assign policy %s: %w", name, err)
		}
	}
	return nil
}

// statements reads the rules in force, by tag.
func (s *server) statements(ctx context.Context) (map[string]*api.Statement, error) {
	have := map[string]*api.Statement{}
	err := s.gobgp.ListPolicy(ctx, &api.ListPolicyRequest{Name: exportPolicy}, func(p *api.Policy) {
		for _, st := range p.Statements {
			have[st.Name] = st
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list policies: %w", err)
	}
	return have, nil
}

// setStatements replaces all rules in one step. This alone sends nothing to peers:
// their routes change with the paths' tags.
func (s *server) setStatements(ctx context.Context, statements map[string]*api.Statement) error {
	export := &api.Policy{Name: exportPolicy}
	peers := map[string]bool{}
	var sets []*api.DefinedSet
	for _, tag := range slices.Sorted(maps.Keys(statements)) {
		export.Statements = append(export.Statements, statements[tag])
		sets = append(sets, &api.DefinedSet{
			DefinedType: api.DefinedType_DEFINED_TYPE_LARGE_COMMUNITY, Name: tag, List: []string{tag},
		})
		peers[statements[tag].Conditions.NeighborSet.Name] = true
	}
	for _, peer := range slices.Sorted(maps.Keys(peers)) {
		sets = append(sets, &api.DefinedSet{
			DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR, Name: peer, List: []string{peer},
		})
	}
	// Local paths pass the import policy too.
	local := &api.Policy{Name: importPolicy, Statements: []*api.Statement{{
		Name:       "local",
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT},
	}}}
	if err := s.gobgp.SetPolicies(ctx, &api.SetPoliciesRequest{
		DefinedSets: sets, Policies: []*api.Policy{export, local},
	}); err != nil {
		return fmt.Errorf("set policies: %w", err)
	}
	return nil
}
