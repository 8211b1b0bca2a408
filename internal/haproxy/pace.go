package haproxy

import (
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Each reload leaves an old worker, which runs until its last connection ends. So edits share reloads, and wait while
// there are MaxOld old workers.
const (
	// minPause is the minimum time between two reloads.
	minPause = 500 * time.Millisecond
	// maxWait is the maximum time for which an edit waits. After it the oldest worker is ended.
	maxWait = time.Minute
	// MaxOld is the number of old workers that may keep running.
	MaxOld = 2
)

// Due returns the time from which the next reload may begin. old is the number of old workers, last the time of the
// last reload, and since the time from which edits wait.
func Due(old int, last, since time.Time) time.Time {
	limit := since.Add(maxWait)
	due := last.Add(minPause)
	if old < MaxOld && due.Before(limit) {
		return due
	}

	return limit
}

// withoutPortsOf returns a function that removes the ports on which these Services listen from another Service.
func withoutPortsOf(services []Service) func(Service) Service {
	used := map[uint16]bool{}
	for _, s := range services {
		for _, p := range s.Ports {
			used[p.Listen] = true
		}
	}

	return func(s Service) Service {
		s.Ports = slices.DeleteFunc(slices.Clone(s.Ports), func(p Port) bool {
			return used[p.Listen]
		})
		return s
	}
}

// lingerTime is the time for which proxies continue to serve a Service that is no longer wanted. Until speakers and the
// controller have read of the change, speakers send connections to the proxies.
const lingerTime = 10 * time.Second

// Linger returns the wanted Services, and the other Services of its last result, unchanged, for lingerTime. until has
// the time at which each of these ends; Linger updates it. A port that another Service needs does not linger.
func Linger(last, want []Service, until map[lb.Key]time.Time, at time.Time) []Service {
	out := slices.Clone(want)
	isWanted := map[lb.Key]bool{}
	for _, s := range want {
		isWanted[s.Key] = true
		delete(until, s.Key)
	}

	withoutWanted := withoutPortsOf(want)
	for _, s := range last {
		if isWanted[s.Key] {
			continue
		}

		if until[s.Key].IsZero() {
			until[s.Key] = at.Add(lingerTime)
		}

		s = withoutWanted(s)
		hasEnded := !at.Before(until[s.Key])
		if hasEnded || len(s.Ports) == 0 {
			delete(until, s.Key)
		} else {
			out = append(out, s)
		}
	}

	return out
}

// Refresh returns the Services in force with the endpoints of the wanted ports. A port that is no longer wanted has
// none.
func Refresh(inForce, want []Service) (out []Service) {
	type port struct {
		key  lb.Key
		port uint16
	}
	endpoints := map[port]Port{}
	for _, s := range want {
		for _, p := range s.Ports {
			endpoints[port{key: s.Key, port: p.Port}] = p
		}
	}

	for _, s := range inForce {
		s.Ports = slices.Clone(s.Ports)
		for i, p := range s.Ports {
			wanted := endpoints[port{key: s.Key, port: p.Port}]
			s.Ports[i].Endpoints = wanted.Endpoints
		}

		out = append(out, s)
	}

	return out
}
