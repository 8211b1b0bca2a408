package main

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// compareAge is for how long nothing is compared of a Service that does not change; at most for twice the time, so that
// all are compared by turns.
const compareAge = 4 * time.Minute

// formerOf returns a function that returns the write of the last run about a Service, nil for none. It must be asked
// once of each, in the order of keys.
func formerOf(last []*serviceWrite) func(*lb.Service) *serviceWrite {
	return func(svc *lb.Service) *serviceWrite {
		for len(last) > 0 && last[0].compiled != svc && last[0].compiled.Key.Compare(svc.Key) < 0 {
			last = last[1:]
		}
		if len(last) == 0 || last[0].compiled != svc && last[0].compiled.Key != svc.Key {
			return nil
		}
		w := last[0]
		last = last[1:]
		return w
	}
}

// differs reports whether a write changes something. If the last run had nothing to write of the Service, and the same
// decides, the Service is not compared again, but by turns: the comparison is the witness of what is remembered.
func (s *syncer) differs(now time.Time, w, before *serviceWrite) bool {
	stood := before != nil && !before.stands.IsZero() && (w == before || w.same(before))
	switch {
	case stood && now.Before(before.stands):
		w.stands = before.stands
		return false
	case w.keep == nil && w.read().update(s.options).Stands():
		w.stands = now.Add(s.compareAge + rand.N(s.compareAge))
		return false
	case stood:
		s.repairs.Add(1)
		s.log.Error("a Service that stood is to be written though nothing changed", "service", w.assignment.Key)
	}
	w.stands = time.Time{}
	return true
}

// same reports whether the same decides what is to be written; no object changes in place.
func (w *serviceWrite) same(o *serviceWrite) bool {
	return w.held == o.held &&
		w.hostname == o.hostname &&
		w.loadBalancer == o.loadBalancer &&
		reflect.DeepEqual(w.proxied, o.proxied) &&
		w.keep == o.keep &&
		w.nodesUnknown == o.nodesUnknown &&
		slices.Equal(w.problems, o.problems) &&
		reflect.DeepEqual(w.frontends, o.frontends) &&
		reflect.DeepEqual(w.assignment, o.assignment)
}
