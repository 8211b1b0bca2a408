package node

import (
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/report"
)

// maxLogged is how many Services a run logs by name. A thousand lines would delay the announcements of a failover.
const maxLogged = 20

// logChanges logs the Services whose announcement by this node changed, and each new problem of this node.
func (w *Loop) logChanges(last, next *planned) {
	changes := 0
	last.plan().Verdicts.Changes(next.Plan.Verdicts, func(_ lb.Key, old, v *plan.Verdict, existed, exists bool) {
		if !exists {
			return
		}
		if !existed {
			old = &plan.Verdict{}
		}

		layer2 := old.L2.Here != v.L2.Here && v.L2.Selected
		bgp := old.BGP.Here != v.BGP.Here && v.BGP.Selected
		if layer2 || bgp {
			changes++
		}
		if layer2 && changes <= maxLogged {
			w.log.Info("layer 2",
				"service", v.Service, "reason", v.L2.Here, "nodes", v.L2.Nodes, "message", v.L2.Message)
		}
		if bgp && changes <= maxLogged {
			w.log.Info("BGP", "service", v.Service, "reason", v.BGP.Here, "message", v.BGP.Message)
		}
	})
	if changes > maxLogged {
		w.log.Info("more Services changed", "services", changes-maxLogged)
	}

	for _, p := range next.Problems {
		if last == nil || !slices.Contains(last.Problems, p) {
			w.log.Warn("node", "reason", p.Reason, "message", p.Message)
		}
	}
}

// debugState is the answer of /debug/state.
type debugState struct {
	Node      string
	Planned   *planned
	Members   detect.NodeSets
	Links     []lb.Interface
	Layer2    any
	Sessions  []lb.Session
	Filter    any
	Relay     any
	Egress    any
	Unserved  []lb.Key
	HeadStart bool
	Proxy     any
	KubeProxy string
}

// Debug returns the answer of /debug/state.
func (w *Loop) Debug() any {
	return debugState{
		Node:      w.node,
		Planned:   w.last.Load(),
		Members:   w.sources.Membership.view(),
		Links:     w.sources.Links.Links(),
		Layer2:    w.sinks.Layer2.State(),
		Sessions:  w.sinks.BGP.Sessions(),
		Filter:    switchable(w.sinks.Filter.on, w.sinks.Filter.Table.State()),
		Relay:     switchable(w.sinks.Relays.on, w.sinks.Relays.State()),
		Egress:    w.sinks.Outgoing.State(),
		Unserved:  w.sources.Endpoints.Waiting(),
		HeadStart: w.sinks.HeadStart.InForce(),
		Proxy:     w.sinks.Divert.State(),
		KubeProxy: w.sources.Boot.Waiting(),
	}
}

// switchable returns the state of a part for /debug/state, or "off" if the part is switched off.
func switchable(on bool, state any) any {
	if on {
		return state
	}
	return "off"
}

// Standing returns the result of the last run; nil before the first, and if everything is withdrawn.
func (w *Loop) Standing() *report.Standing {
	last := w.last.Load()
	if last == nil {
		return nil
	}
	return &last.Standing
}

// Tables reports which tables of the kernel are in force, by kind.
func (w *Loop) Tables() map[string]bool {
	return map[string]bool{
		"filter":    w.sinks.Filter.inForce(),
		"headstart": w.sinks.HeadStart.InForce(),
		"proxy":     w.sinks.Divert.InForce(),
	}
}

// Hangs reports whether a run hangs.
func (w *Loop) Hangs() bool { return w.stops.hang.since.Load() != nil }

// APIAge returns how long ago this node heard the API server, if it takes part in the membership.
func (w *Loop) APIAge() (age time.Duration, isKnown bool) {
	return w.sources.Cluster.APIAge(), w.sources.Membership.Ready()
}
