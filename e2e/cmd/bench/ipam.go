package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// assignment is a figure of the assignment alone, which needs no cluster.
type assignment struct {
	name string
	unit time.Duration
	// measure returns the durations of its rounds.
	measure func() ([]time.Duration, error)
}

var assignments = []assignment{
	{"ipam_assign_10k_ms", time.Millisecond, assignAll(10_000, lb.IPv4, nil)},
	{"ipam_assign_50k_ms", time.Millisecond, assignAll(50_000, lb.IPv4, nil)},
	{"ipam_assign_64_10k_ms", time.Millisecond, assignAll(10_000, lb.IPv6, nil)},
	{"ipam_assign_sharing_10k_ms", time.Millisecond, assignAll(20_000, lb.IPv4, pairs)},
}

// assignmentRounds is the number of rounds of an assignment.
const assignmentRounds = 9

// assignAll times the decision for a number of Services without addresses.
func assignAll(services int, family lb.Family, change func(*lb.State)) func() ([]time.Duration, error) {
	return func() ([]time.Duration, error) {
		s := state(services, family)
		if change != nil {
			change(&s)
		}

		var times []time.Duration
		for range assignmentRounds {
			start := time.Now()
			result := ipam.Assign(s)
			times = append(times, time.Since(start))
			if len(result.Assignments[services-1].Addresses) != 1 {
				return nil, errors.New("the last Service got no address")
			}
		}

		return times, nil
	}
}

// pairs makes two Services share each address.
func pairs(s *lb.State) {
	for i := range s.Services {
		s.Services[i].SharingKey = fmt.Sprint(i / 2)
		s.Services[i].Ports = []lb.Port{{Protocol: "TCP", Port: uint16(80 + i%2)}}
	}
}

// supply returns a pool with a /16 and a /64.
func supply() lb.Pool {
	between := func(from, to string) lb.Range {
		return lb.Range{From: netip.MustParseAddr(from), To: netip.MustParseAddr(to)}
	}
	return lb.Pool{
		Name:       "bench",
		AutoAssign: true,
		Ranges: []lb.Range{
			between("10.0.0.0", "10.0.255.255"),
			between("2001:db8::", "2001:db8::ffff:ffff:ffff:ffff"),
		},
	}
}

// state returns a number of Services without addresses, and the pool.
func state(services int, family lb.Family) lb.State {
	s := lb.State{Now: time.Now(), Pools: []lb.Pool{supply()}}
	for i := range services {
		s.Services = append(s.Services, &lb.Service{
			Key:          lb.Key{Namespace: "bench", Name: fmt.Sprintf("s%06d", i)},
			UID:          fmt.Sprint(i),
			Created:      time.Unix(int64(i), 0),
			Families:     []lb.Family{family},
			FamilyPolicy: lb.SingleStack,
			Ports:        []lb.Port{{Protocol: "TCP", Port: 80}},
		})
	}

	return s
}

// measureAssignments prints the figures that have the prefix, and reports whether there is one.
func measureAssignments(only string) (found bool, err error) {
	for _, a := range assignments {
		if !strings.HasPrefix(a.name, only) {
			continue
		}

		found = true
		times, err := a.measure()
		if err != nil {
			return found, fmt.Errorf("%s: %w", a.name, err)
		}

		unit := a.name[strings.LastIndexByte(a.name, '_')+1:]
		median := float64(quantile(times, 0.5)) / float64(a.unit)
		fmt.Printf("bench: %s %.1f %s\n", a.name, median, unit)
	}

	return found, nil
}
