package main

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"time"
)

// compareAge is for how long nothing is compared of a Service that does not change; at most for twice the time, so that all are compared by turns.
const compareAge = 4 * time.Minute

// differing returns the writes that change something. Writes are ordered by key. If the last run had nothing to write of a Service, and the same
// decides, the Service is not compared again, but by turns: the comparison is the witness of what is remembered.
func (s *syncer) differing(now time.Time, writes []serviceWrite) (out []serviceWrite) {
	last, at := s.compared, 0
	s.compared = writes
	for i := range writes {
		w := &writes[i]
		for at < len(last) && last[at].assignment.Key.Compare(w.assignment.Key) < 0 {
			at++
		}
		stood := at < len(last) && !last[at].stands.IsZero() && w.same(&last[at])
		if stood && now.Before(last[at].stands) {
			w.stands = last[at].stands
			continue
		}
		if w.keep == nil && w.update(s.options).Stands() {
			w.stands = now.Add(s.compareAge + rand.N(s.compareAge))
			continue
		}
		if stood {
			s.repairs.Add(1)
			s.log.Error("a Service that stood is to be written though nothing changed", "service", w.assignment.Key)
		}
		out = append(out, *w)
	}
	return out
}

// same reports whether the same decides what is to be written; no object changes in place.
func (w *serviceWrite) same(o *serviceWrite) bool {
	a, b := w.assignment, o.assignment
	return w.service == o.service && w.hostname == o.hostname && w.loadBalancer == o.loadBalancer && w.proxied == o.proxied && w.keep == o.keep &&
		w.nodesUnknown == o.nodesUnknown && slices.Equal(w.problems, o.problems) && reflect.DeepEqual(w.frontends, o.frontends) &&
		a.Key == b.Key && slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.Pools, b.Pools) && slices.Equal(a.Record, b.Record) &&
		slices.Equal(a.Awaits, b.Awaits) && a.Reason == b.Reason && a.Message == b.Message
}
