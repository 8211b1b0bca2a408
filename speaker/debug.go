package main

import (
	"slices"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/members"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// maxLogged is how many Services are named when a run changed more: a thousand lines cost the time that a failover
// needs for announcements.
const maxLogged = 20

// logChanges logs the Services whose announcement by this node changed, and each new problem of this node.
func (w *syncer) logChanges(last, now *planned) {
	verdicts := map[lb.Key]plan.Verdict{}
	for _, v := range last.plan().Verdicts {
		verdicts[v.Service] = v
	}
	changes := 0
	for _, v := range now.Plan.Verdicts {
		old := verdicts[v.Service]
		layer2, bgp := old.L2.Here != v.L2.Here && v.L2.Selected, old.BGP.Here != v.BGP.Here && v.BGP.Selected
		if layer2 || bgp {
			changes++
		}
		if changes > maxLogged {
			continue
		}
		if layer2 {
			w.log.Info("layer 2", "service", v.Service, "reason", v.L2.Here, "nodes", v.L2.Nodes, "message", v.L2.Message)
		}
		if bgp {
			w.log.Info("BGP", "service", v.Service, "reason", v.BGP.Here, "message", v.BGP.Message)
		}
	}
	if changes > maxLogged {
		w.log.Info("more Services changed", "services", changes-maxLogged)
	}
	for _, p := range now.Problems {
		if last == nil || !slices.Contains(last.Problems, p) {
			w.log.Warn("node", "reason", p.Reason, "message", p.Message)
		}
	}
}

// debug returns what /debug/state shows.
func (w *syncer) debug() any {
	return struct {
		Node     string
		Planned  *planned
		Members  members.View
		Links    []lb.Interface
		Layer2   any
		Sessions []bgp.Session
		Filter   any
		Relay    any
		Unserved []lb.Key
	}{w.node, w.last.Load(), w.membership.view(), w.links.Links(), w.layer2.State(), w.bgp.Sessions(), w.filter.state(), w.relays.state(), w.endpoints.Waiting()}
}
