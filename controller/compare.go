package main

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// compareAge is the time for which a Service without changes is not compared with its desired state. It is up to twice
// as long for each Service, so that the comparisons are spread over time.
const compareAge = 4 * time.Minute

// lastWrites returns a function that returns the last run's write of a Service; nil for none. The function must be
// called once for each Service, in the order of keys.
func lastWrites(last []*serviceWrite) func(*lb.Service) *serviceWrite {
	return func(svc *lb.Service) *serviceWrite {
		for len(last) > 0 {
			w := last[0]
			if w.compiled == svc || w.compiled.Key == svc.Key {
				last = last[1:]
				return w
			}
			if w.compiled.Key.Compare(svc.Key) > 0 {
				return nil
			}

			last = last[1:]
		}

		return nil
	}
}

// differs reports whether a Service differs from its desired state. If the last run had nothing to write and the inputs
// are the same, the Service is compared again only after unchangedUntil. That comparison checks the reuse of results.
func (s *syncer) differs(at time.Time, w, last *serviceWrite) bool {
	wasUnchanged := last != nil &&
		!last.unchangedUntil.IsZero() &&
		(w == last || w.hasSameInputs(last))
	if wasUnchanged && at.Before(last.unchangedUntil) {
		w.unchangedUntil = last.unchangedUntil
		return false
	}

	isDone := w.keep == nil && w.read().update(s.options).IsDone()
	if isDone {
		w.unchangedUntil = at.Add(compareAge + rand.N(compareAge))
		return false
	}

	if wasUnchanged {
		s.repairs.Add(1)
		s.log.Error("a Service needs a write although nothing changed", "service", w.assignment.Key)
	}

	w.unchangedUntil = time.Time{}
	return true
}

// hasSameInputs reports whether two writes depend on the same inputs. Objects never change in place.
func (w *serviceWrite) hasSameInputs(o *serviceWrite) bool {
	return w.held == o.held &&
		w.hostname == o.hostname &&
		w.loadBalancer == o.loadBalancer &&
		reflect.DeepEqual(w.proxied, o.proxied) &&
		reflect.DeepEqual(w.egress, o.egress) &&
		w.keep == o.keep &&
		w.areNodesUnknown == o.areNodesUnknown &&
		slices.Equal(w.problems, o.problems) &&
		reflect.DeepEqual(w.frontends, o.frontends) &&
		reflect.DeepEqual(w.assignment, o.assignment)
}
