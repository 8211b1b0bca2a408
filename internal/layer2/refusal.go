package layer2

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// refusal is an lb.Refusal as State sees it.
type refusal struct {
	lb.Interface
	err string
}

// Refused returns the links whose sockets could not be opened at the last attempt.
func (r *Responder) Refused() []lb.Refusal {
	var out []lb.Refusal
	for _, l := range *r.refusals.Load() {
		out = append(out, lb.Refusal{Link: l.Name, Error: l.err})
	}
	return out
}

// try opens the sockets of a link without a port, once, and again for as long as that
// fails. So the others know that this node cannot announce on the link before it has to,
// and know when it can again while others announce. Without the first attempt a node
// without NET_RAW takes every address that the election gives it, and only then leaves it.
func (k *keeper) try(l lb.Interface) {
	if refused := k.complaints[l.Index] != ""; !refused && (k.tried[l.Index] || !l.Usable()) {
		return
	}
	var wires []wire
	var err error
	for _, proto := range k.r.protocols {
		var w wire
		if w, err = k.r.listen(l, proto, []netip.Addr{}); err != nil {
			break
		}
		wires = append(wires, w)
	}
	k.opened(l, err)
	// Closing takes a grace period of the kernel, which must not delay announcements.
	go func() {
		var errs []error
		for _, w := range wires {
			errs = append(errs, w.Close())
		}
		if err := errors.Join(errs...); err != nil {
			k.r.log.Debug("close sockets", "link", l.Name, "error", err)
		}
	}()
}

// opened records the result of opening a link's sockets.
func (k *keeper) opened(l lb.Interface, err error) {
	k.tried[l.Index] = true
	if err == nil {
		delete(k.complaints, l.Index)
		return
	}
	if k.complaints[l.Index] != err.Error() {
		k.complaints[l.Index] = err.Error()
		k.r.log.Error("link cannot answer", "link", l.Name, "error", err)
	}
}

// refuse publishes the refused links among these.
func (k *keeper) refuse(links []lb.Interface) {
	var now []refusal
	there := make(map[int]bool, len(links))
	for _, l := range links {
		there[l.Index] = true
		if err := k.complaints[l.Index]; err != "" {
			now = append(now, refusal{l, err})
		}
	}
	maps.DeleteFunc(k.complaints, func(index int, _ string) bool { return !there[index] })
	maps.DeleteFunc(k.tried, func(index int, _ bool) bool { return !there[index] })
	before := k.r.refusals.Swap(&now)
	if !slices.EqualFunc(*before, now, func(a, b refusal) bool { return a.Name == b.Name && a.err == b.err }) {
		k.r.refused()
	}
}
