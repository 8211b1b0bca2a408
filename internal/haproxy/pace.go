package haproxy

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Each reload leaves an old worker until its last connection ends. So edits wait ever longer while old workers remain,
// and share reloads; no edit waits for more than maxWait, even if the oldest worker has to end for it.
const (
	minPause = 500 * time.Millisecond
	maxWait  = time.Minute
	// MaxOld is how many old workers there may be without the end of the oldest.
	MaxOld = 7
)

// Due returns when the next reload may be: the last one began at last, and edits wait since.
func Due(old int, last, since time.Time) time.Time {
	limit := since.Add(maxWait)
	if due := last.Add(minPause << max(0, old)); old < MaxOld && due.Before(limit) {
		return due
	}
	return limit
}

// A namespace has a budget of reloads: a burst, and one for each time. Beyond it its edits wait while there are many
// old workers, as the next ones cost other namespaces their connections.
const (
	editBurst = 10
	editTime  = 5 * time.Minute
	// freeOld is how many old workers there may be for edits beyond the budget.
	freeOld = 3
)

// Budgets are the reloads that namespaces caused: each holds what it has spent, and when. The zero Budgets are full.
type Budgets map[string]spent

type spent struct {
	edits float64
	at    time.Time
}

func (b Budgets) left(namespace string, at time.Time) float64 {
	s := b[namespace]
	return min(editBurst, editBurst-s.edits+float64(at.Sub(s.at))/float64(editTime))
}

// Spend takes one of the budget of each namespace whose edits are in a reload.
func (b Budgets) Spend(namespaces []string, at time.Time) {
	maps.DeleteFunc(b, func(namespace string, _ spent) bool { return b.left(namespace, at) >= editBurst })
	for _, n := range namespaces {
		b[n] = spent{edits: editBurst - max(0, b.left(n, at)-1), at: at}
	}
}

// Hold returns the Services as the next reload may have them: of a namespace whose budget is spent, those in force with
// the endpoints that are wanted. It returns the namespaces with an edit, and those that are held. A port that another
// Service needs is not held.
func Hold(inForce, want []Service, b Budgets, old int, at time.Time) (out []Service, edited, held []string) {
	before, after := byNamespace(inForce), byNamespace(want)
	names := maps.Clone(before)
	maps.Copy(names, after)
	for _, n := range slices.Sorted(maps.Keys(names)) {
		switch {
		case reflect.DeepEqual(Refresh(before[n], after[n]), after[n]):
			out = append(out, after[n]...)
		case old <= freeOld || b.left(n, at) >= 1:
			edited, out = append(edited, n), append(out, after[n]...)
		default:
			held = append(held, n)
		}
	}
	free := unused(out)
	for _, n := range held {
		for _, s := range Refresh(before[n], after[n]) {
			if s = free(s); len(s.Ports) > 0 {
				out = append(out, s)
			}
		}
	}
	return out, edited, held
}

// unused returns a function that takes from a Service the ports on which these Services listen.
func unused(services []Service) func(Service) Service {
	used := map[uint16]bool{}
	for _, s := range services {
		for _, p := range s.Ports {
			used[p.Listen] = true
		}
	}
	return func(s Service) Service {
		s.Ports = slices.DeleteFunc(slices.Clone(s.Ports), func(p Port) bool { return used[p.Listen] })
		return s
	}
}

// byNamespace returns the Services of each namespace, ordered.
func byNamespace(services []Service) map[string][]Service {
	out := map[string][]Service{}
	for _, s := range (State{Services: services}).sorted() {
		out[s.Key.Namespace] = append(out[s.Key.Namespace], s)
	}
	return out
}

// lingerTime is how long proxies go on to serve a Service that is no longer wanted: speakers lead connections to them,
// and the controller believes that they serve it, until both have heard of the change.
const lingerTime = 10 * time.Second

// Linger returns the Services that are wanted, and for a while what else its last result had, as it was; until holds
// when each of these ends. A port that another Service needs does not linger.
func Linger(last, want []Service, until map[lb.Key]time.Time, at time.Time) []Service {
	out, free, wanted := slices.Clone(want), unused(want), map[lb.Key]bool{}
	for _, s := range want {
		wanted[s.Key] = true
		delete(until, s.Key)
	}
	for _, s := range last {
		if wanted[s.Key] {
			continue
		}
		if until[s.Key].IsZero() {
			until[s.Key] = at.Add(lingerTime)
		}
		if s = free(s); len(s.Ports) == 0 || !at.Before(until[s.Key]) {
			delete(until, s.Key)
			continue
		}
		out = append(out, s)
	}
	return out
}

// Refresh returns the Services in force with the endpoints of the ports that are wanted: a port that is no longer
// wanted has none.
func Refresh(inForce, want []Service) (out []Service) {
	type port struct {
		key  lb.Key
		port uint16
	}
	endpoints := map[port]Port{}
	for _, s := range want {
		for _, p := range s.Ports {
			endpoints[port{s.Key, p.Port}] = p
		}
	}
	for _, s := range inForce {
		s.Ports = slices.Clone(s.Ports)
		for i, p := range s.Ports {
			s.Ports[i].Endpoints = endpoints[port{s.Key, p.Port}].Endpoints
		}
		out = append(out, s)
	}
	return out
}
