package haproxy

import (
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Each reload leaves an old worker until its last connection ends. Edits share reloads, and while there are MaxOld old
// workers they wait for the end of one; no edit waits for more than maxWait, even if the oldest has to end for it.
const (
	minPause = 500 * time.Millisecond
	maxWait  = time.Minute
	// MaxOld is how many old workers there may be without the end of the oldest.
	MaxOld = 2
)

// Due returns when the next reload may be: the last one began at last, and edits wait since.
func Due(old int, last, since time.Time) time.Time {
	limit := since.Add(maxWait)
	if due := last.Add(minPause); old < MaxOld && due.Before(limit) {
		return due
	}
	return limit
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
