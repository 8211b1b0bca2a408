package node

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/podnetwork"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// handoverTime bounds how long a speaker that stops waits for others to take over its addresses. It is far less
	// than the pod's grace period, and longer than a node keeps the BGP routes that it leaves.
	handoverTime = 4 * time.Second
	// handoverInterval is the time between two checks whether all addresses are handed over.
	handoverInterval = 20 * time.Millisecond
	// stackSize bounds the stacks in the log, in bytes.
	stackSize = 32 << 10
)

// HandOver waits for the order to stop. Then it waits until other nodes announce the addresses of this node, as far as
// any can, and until this node has withdrawn its routes; meanwhile the speaker works as before. If the node goes down,
// the routers are told. HandOver returns at once when whole ends.
func (w *Loop) HandOver(whole context.Context, stop <-chan struct{}) {
	select {
	case <-whole.Done():
		return
	case <-stop:
	}
	if w.last.Load() == nil {
		return // this node announces nothing yet, or has withdrawn everything
	}
	w.stops.stopping.Store(true)
	w.loop.Hurry()
	ctx, cancel := context.WithTimeout(whole, handoverTime)
	defer cancel()
	start := time.Now()
	err := wait.PollUntilContextCancel(ctx, handoverInterval, true, func(context.Context) (bool, error) {
		return w.isHandedOver(), nil
	})

	last := w.last.Load()
	if last != nil && last.Goodbye != "" && whole.Err() == nil {
		w.log.Info("BGP sessions are shut down", "reason", last.Goodbye)
		w.sinks.BGP.Shutdown(last.Goodbye)
	}
	w.log.Info("stopping", "handedOver", err == nil, "after", time.Since(start).Round(time.Millisecond))
}

// offer asks other nodes to take over the addresses of this node, because its plan loop hangs. It tells them that this
// speaker stops, and answers until they announce. Routes stay. It logs last, since the run may hang in the log.
func (w *Loop) offer() {
	isRepeated := w.stops.hung.Swap(true)
	if !isRepeated {
		w.loop.Kick() // the next run hands over as an orderly stop does, and the run after it takes addresses back
	}

	w.sinks.Layer2.Offer()
	w.sources.Membership.sendStopping()

	if !isRepeated {
		stacks := make([]byte, stackSize)
		stacks = stacks[:runtime.Stack(stacks, true)]
		w.log.Error("a run of the plan loop hangs: other nodes are asked to take over the addresses of this node",
			"for", hangTime, "stacks", string(stacks))
	}
}

// countOffered returns how many addresses no node has taken over yet.
func (w *Loop) countOffered() int { return len(w.sinks.Layer2.Offered()) }

// isHandedOver reports whether the other speakers know that this one stops, and have taken over its addresses, and
// whether its routes are withdrawn.
func (w *Loop) isHandedOver() bool {
	isKnown := w.stops.saidGoodbye.Load() || w.stops.hung.Load()
	return isKnown &&
		w.countOffered() == 0 &&
		len(w.sinks.Layer2.HandingOver()) == 0 &&
		w.last.Load().plan().Withdraws.IsZero()
}

// goodbye returns the text that routers get when the speaker of a node is ordered to stop: with Cease, Administrative
// Shutdown (RFC 9003), so that they remove the routes. "" sends nothing, so that they keep the routes for the next
// speaker (graceful restart). A drained node that still advertises has the only route, which routers must not remove.
func goodbye(n lb.Node, p plan.Plan) string {
	switch {
	case n.ShuttingDown:
		return "node " + n.Name + " goes down"
	case n.Draining && p.Routes.Len() == 0:
		return "node " + n.Name + " is drained"
	}
	return ""
}

// errMarkRemoved ends a process that has withdrawn everything and should announce again.
var errMarkRemoved = errors.New("the uninstall mark was removed: only a new process announces again")

// AwaitRemoval returns an error when this process should end because the uninstall mark was removed, and nil when ctx
// ends.
func (w *Loop) AwaitRemoval(ctx context.Context) error {
	select {
	case <-w.stops.markRemoved:
		return errMarkRemoved
	case <-ctx.Done():
		return nil
	}
}

// withdraw withdraws all announcements because of the uninstall mark. Then it removes the filter, and everything else
// that Holdfast keeps on this node.
func (w *Loop) withdraw() error {
	if w.stops.withdrawn.Load() {
		return nil
	}
	w.stops.withdrawing = true
	w.sources.Liveness.Set(liveness.Known{})
	w.sinks.Conntrack.Set(nil)
	w.sinks.Layer2.Set(layer2.Desired{})
	w.sinks.BGP.Leave()
	w.sinks.Peering.Set(bgp.Desired{}, nil)
	err := errors.Join(
		w.sinks.Relays.Remove(),
		w.sinks.Outgoing.Remove(),
		w.sinks.HeadStart.Remove(),
		w.sinks.Divert.Remove(),
		w.sinks.Filter.Table.Remove(),
		kubeproxy.Forget(),
		podnetwork.Forget(),
	)
	if err != nil {
		return err
	}
	w.last.Store(nil)
	w.stops.withdrawn.Store(true)
	w.log.Info("uninstalling: everything is withdrawn")
	return nil
}
