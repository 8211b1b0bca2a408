package layer2

import (
	"reflect"
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

// opened records the result of opening a link's sockets.
func (k *keeper) opened(l lb.Interface, err error) {
	if err == nil {
		delete(k.complaints, l.Index)
		return
	}

	if k.complaints[l.Index] != err.Error() {
		k.complaints[l.Index] = err.Error()
		k.r.config.Log.Error("link cannot answer", "link", l.Name, "error", err)
	}
}

// refuse publishes the refused links among these.
func (k *keeper) refuse(links []lb.Interface) {
	var now []refusal
	complaints := make(map[int]string)
	for _, l := range links {
		if err := k.complaints[l.Index]; err != "" {
			complaints[l.Index] = err
			now = append(now, refusal{l, err})
		}
	}

	k.complaints = complaints
	before := k.r.refusals.Load()
	if reflect.DeepEqual(*before, now) {
		return // State is as before
	}

	if k.r.refusals.Store(&now); !slices.EqualFunc(*before, now, func(a, b refusal) bool {
		return a.Name == b.Name &&
			a.err == b.err
	}) {
		k.r.config.Refused()
	}
}
