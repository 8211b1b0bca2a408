package main

import (
	"context"
	"errors"
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
	// handoverTime bounds how long a speaker that stops waits for others to take its addresses over: far less than
	// the pod's grace period, and more than a node goes on with BGP routes that it leaves.
	handoverTime = 4 * time.Second
	// handoverInterval is the time between two checks whether all addresses are handed over.
	handoverInterval = 20 * time.Millisecond
)

// handOver waits for the order to stop, and then until others announce the addresses of this node, if any other node
// can, and until the routes that it leaves are withdrawn. Until then this speaker goes on with everything. If the node
// goes down, the routers hear it. handOver returns at once when whole ends.
func (w *syncer) handOver(whole context.Context, stop <-chan struct{}) {
	select {
	case <-whole.Done():
		return
	case <-stop:
	}
	if w.last.Load() == nil {
		return // this node announces nothing yet, or has withdrawn everything
	}
	w.stopping.Store(true)
	w.loop.Hurry()
	ctx, cancel := context.WithTimeout(whole, handoverTime)
	defer cancel()
	start := time.Now()
	err := wait.PollUntilContextCancel(ctx, handoverInterval, true, func(context.Context) (bool, error) {
		return (w.saidGoodbye.Load() ||
			w.hung.Load()) &&
			len(w.layer2.Offered()) == 0 &&
			len(w.layer2.Handing()) == 0 &&
			w.last.Load().plan().Withdraws.IsZero(), nil
	})
	if last := w.last.Load(); last != nil && last.Goodbye != "" && whole.Err() == nil {
		w.log.Info("BGP sessions are shut down", "reason", last.Goodbye)
		w.bgp.Shutdown(last.Goodbye)
	}
	w.log.Info("stopping", "handedOver", err == nil, "after", time.Since(start).Round(time.Millisecond))
}

// goodbye returns what routers hear when the speaker of a node is ordered to stop: Cease, Administrative Shutdown, with
// this text, so that they forget the routes; or nothing (""), so that they keep them for the speaker that is started
// next (graceful restart). A node that is drained and still advertises does so because no other can: routers would lose
// the only route.
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

// withdraw obeys the uninstall mark: it withdraws all announcements, then removes the filter and everything else that
// this node keeps.
func (w *syncer) withdraw() error {
	if w.withdrawn.Load() {
		return nil
	}
	w.withdrawing = true
	w.liveness.Set(liveness.Known{})
	w.conntrack.Set(nil)
	w.layer2.Set(layer2.Desired{})
	w.bgp.Leave()
	w.peering.Set(bgp.Desired{}, nil)
	err := errors.Join(
		w.relays.Remove(),
		w.headstart.Remove(),
		w.divert.Remove(),
		w.filter.table.Remove(),
		kubeproxy.Forget(),
		podnetwork.Forget(),
	)
	if err != nil {
		return err
	}
	w.last.Store(nil)
	w.withdrawn.Store(true)
	w.log.Info("uninstalling: everything is withdrawn")
	return nil
}
