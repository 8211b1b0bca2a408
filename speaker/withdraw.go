package main

import (
	"errors"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/liveness"
)

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
	w.paths.set(bgp.Desired{}, nil)
	if err := errors.Join(w.relays.remove(), w.headstart.Remove(), w.filter.remove(), kubeproxy.Forget()); err != nil {
		return err
	}
	w.last.Store(nil)
	w.report.Set(nil)
	w.withdrawn.Store(true)
	w.log.Info("uninstalling: everything is withdrawn")
	return nil
}

// end ends the process with an error, unless it is ending already.
func (w *syncer) end(err error) {
	select {
	case w.ended <- err:
	default:
	}
}
