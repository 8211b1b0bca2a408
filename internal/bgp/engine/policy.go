package engine

import (
	"context"
	"fmt"

	"github.com/osrg/gobgp/v4/api"
)

// setPolicies installs what is accepted in each direction; everything else is rejected.
func (e *engine) setPolicies(ctx context.Context) error {
	accept := &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT}
	out := &api.Statement{Name: "out", Conditions: &api.Conditions{}, Actions: accept}
	if e.settings.PeerASN == 0 {
		// No route goes out if the router turns out to be of our own AS: only for others GoBGP has put ours into AS_PATH by
		// now. A path that has it before, prepended, is a loop to a router of our own AS, and GoBGP sends none.
		out.Conditions.AsPathLength = &api.AsPathLength{Type: api.Comparison_COMPARISON_GE, Length: 1}
	}
	// Our own routes pass the import policy too.
	in := &api.Statement{Name: "in", Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL}, Actions: accept}
	if err := e.gobgp.SetPolicies(ctx, &api.SetPoliciesRequest{Policies: []*api.Policy{
		{Name: out.Name, Statements: []*api.Statement{out}}, {Name: in.Name, Statements: []*api.Statement{in}},
	}}); err != nil {
		return fmt.Errorf("set policies: %w", err)
	}
	for name, direction := range map[string]api.PolicyDirection{
		in.Name:  api.PolicyDirection_POLICY_DIRECTION_IMPORT,
		out.Name: api.PolicyDirection_POLICY_DIRECTION_EXPORT,
	} {
		if err := e.gobgp.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
			Direction:     direction,
			Policies:      []*api.Policy{{Name: name}},
			DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT,
		}}); err != nil {
			return fmt.Errorf("assign policy %s: %w", name, err)
		}
	}
	return nil
}
