package node

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/divert"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/relay"
)

// apply plans, and sets the sinks in this order: withdraw, filter, relay, serve new addresses, announce. The filter
// comes before the announcements because kube-proxy may serve an address already, and a client may know the MAC of any
// node. Packets that the filter accepts find the way to a proxy of this node at once.
func (w *Loop) apply(
	in inputs,
	state lb.State,
	macs map[lb.MAC]bool,
) (plan.Plan, error) {
	last := w.last.Load().plan()
	p := w.memory.ForNode(w.node, state)
	if !w.sinks.Relays.on {
		p.Relays = lb.Map[netip.Addr, lb.Relay]{}
		p.RelaysEnd = time.Time{}
	}

	w.sinks.Conntrack.Relay(p.Relays, state.Now)
	rest, isLess := last.Staying(p)
	if isLess {
		w.announce(in, rest, macs)
	}

	ways := divert.Desired{
		NodePorts:  p.ClosedNodePorts,
		Proxies:    proxyAddresses(state.ProxyPods, w.node),
		Diversions: p.Entering(last, false),
	}
	w.sinks.Divert.Set(ways)
	relayed := w.sinks.Relays.relayed(p.Relays)
	filterErr := w.sinks.Filter.set(p, relayed, state.Nodes[w.node], in.links)
	changed := w.sinks.Filter.failed() != state.Here.Unfiltered ||
		!w.sinks.Filter.refused().Same(state.Here.Refused)
	if changed {
		w.loop.Hurry() // the next run plans by that, and tells the others
	}

	if (filterErr != nil || changed) && !state.Here.Unfiltered {
		p = p.Waiting(last)
	}

	relayErr := w.sinks.Relays.set(relay.Desired{
		Relays:   p.Relays,
		Expect:   p.Owners.Len() > 0,
		Speakers: macs,
	})
	// The order lets a connection find a proxy or a head start at every moment.
	ways.Diversions = p.Entering(last, true)
	w.sinks.Divert.Set(ways)
	w.sinks.HeadStart.Set(w.starts(p.Newcomers.ByService()))
	ways.Diversions = p.Diversions
	w.sinks.Divert.Set(ways)
	w.sources.Endpoints.Ask()
	w.announce(in, p, macs)
	w.sinks.Conntrack.Set(w.lostEndpoints(p.Lost))
	return p, errors.Join(filterErr, relayErr, w.translate(state, macs))
}

// translate sets the tables of outgoing connections. They stay as an earlier process left them until the pods of this
// node are known.
func (w *Loop) translate(state lb.State, macs map[lb.MAC]bool) error {
	sends := slices.ContainsFunc(state.Services, (*lb.Service).Sends)
	if sends && !w.sources.Cluster.EgressSynced() {
		return nil
	}
	return w.sinks.Outgoing.set(w.memory.Egress(), state, macs)
}

// starts returns where connections to new addresses go. Without the filter only kube-proxy enforces source ranges, so
// no address gets a head start.
func (w *Loop) starts(fresh map[lb.Key][]netip.Addr) []lb.Start {
	if !w.sinks.Filter.inForce() {
		fresh = nil
	}
	return w.objects.compiler.Starts(fresh, w.node)
}

// announce sets the sinks that attract traffic. It sets none if this run was found to hang: other nodes take over then,
// and the next plan decides which addresses this node has.
func (w *Loop) announce(
	in inputs,
	p plan.Plan,
	macs map[lb.MAC]bool,
) {
	if w.stops.hung.Load() && !in.stopping {
		return
	}

	w.sinks.Layer2.Set(layer2.Desired{
		Announcements: p.Announcements,
		Yield:         p.Yield,
		Speakers:      macs,
		Owners:        p.Owners,
	})
	w.sinks.Owners.Kick()

	routes := bgp.Desired{
		RouterID: p.RouterID,
		Peers:    p.Peers,
		Routes:   p.Routes,
	}
	own := w.objects.compiled.Nodes[w.node]
	w.sinks.Peering.Set(routes, own.Addresses)
}

// lostEndpoints returns the endpoints on lost nodes that cannot serve.
func (w *Loop) lostEndpoints(nodes map[string]bool) map[netip.Addr]bool {
	if len(nodes) == 0 {
		return nil
	}

	return w.objects.compiler.LostEndpoints(nodes)
}
