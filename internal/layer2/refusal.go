package layer2

import (
	"reflect"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// refusedLink is a link whose sockets could not be opened, and why.
type refusedLink struct {
	lb.Interface
	err string
}

// Refused returns the links whose sockets could not be opened at the last attempt.
func (r *Responder) Refused() []lb.Refusal {
	var out []lb.Refusal
	for _, l := range *r.published.refusals.Load() {
		out = append(out, lb.Refusal{Link: l.Name, Error: l.err})
	}
	return out
}

// recordOpening records the result of opening a link's sockets, and logs a new error.
func (k *portKeeper) recordOpening(l lb.Interface, err error) {
	if err == nil {
		delete(k.openErrors, l.Index)
		return
	}

	if k.openErrors[l.Index] != err.Error() {
		k.openErrors[l.Index] = err.Error()
		k.r.config.Log.Error("link cannot answer", "link", l.Name, "error", err)
	}
}

// publishRefusals publishes the refused links among the node's links. It forgets errors of other links.
func (k *portKeeper) publishRefusals(links []lb.Interface) {
	var refused []refusedLink
	openErrors := make(map[int]string)
	for _, l := range links {
		if err := k.openErrors[l.Index]; err != "" {
			openErrors[l.Index] = err
			refused = append(refused, refusedLink{Interface: l, err: err})
		}
	}

	k.openErrors = openErrors
	before := k.r.published.refusals.Load()
	if reflect.DeepEqual(*before, refused) {
		return // State is as before
	}

	k.r.published.refusals.Store(&refused)
	hasSameErrors := slices.EqualFunc(*before, refused, func(a, b refusedLink) bool {
		return a.Name == b.Name && a.err == b.err
	})

	if !hasSameErrors {
		k.r.config.Refused()
	}
}
