//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"github.com/holdfast-lb/holdfast/e2e/whohas"
)

// Ports of the speakers: gossip, and heartbeats.
const (
	membersPort   = 7947
	heartbeatPort = 7948
)

// stage is a testbed.Stage with the test's environment.
type stage struct {
	*env
	*testbed.Stage
}

func newStage(t *testing.T, e *env) *stage {
	t.Helper()
	s, err := e.Stage(t.Context(), e.app.Namespace)
	must(t, err)
	undo(t, s.Clear)
	e.served(t, testbed.Client, s.Addresses)
	return &stage{e, s}
}

// watch probes both addresses over TCP and UDP.
func (s *stage) watch(t *testing.T) *testbed.Watch {
	t.Helper()
	tcp, err := s.env.Watch(t.Context(), testbed.Client, probe.TCP, s.Addresses)
	must(t, err)
	udp, err := s.env.Watch(t.Context(), testbed.Client, probe.UDP, s.Addresses)
	must(t, err)
	return tcp.Join(udp)
}

// held is the number of connections to each address that planned events must not break.
const held = 100

// keep holds connections open during a planned event. The function that it returns sends one more request
// on each. All must survive; after a move only the whole matrix requires that, since it has the machine to itself.
func (s *stage) keep(t *testing.T, f fault) (survived func()) {
	if !f.planned {
		return func() {}
	}
	c, err := s.env.Keep(t.Context(), testbed.Client, held, s.Addresses...)
	must(t, err)
	return func() {
		t.Helper()
		seen, err := c.Stop()
		must(t, err)
		t.Logf("matrix: %s: %s", f.name, seen)
		if (f.stays || *matrix) && seen.Lost() > 0 {
			t.Errorf("%d connections broke, though the address stayed where it was", seen.Lost())
		}
	}
}

// figure is the client's view of a time span.
type figure struct {
	failed int
	gap    time.Duration
	parts  []string
}

// between returns the figure of the probes that were started in a time span.
func between(seen []testbed.Seen, from, to time.Time) figure {
	var f figure
	for _, s := range seen {
		part := testbed.Seen{Name: s.Name}
		for _, r := range s.Results {
			if !r.Start.Before(from) && r.Start.Before(to) {
				part.Results = append(part.Results, r)
			}
		}
		f.failed += part.Failed()
		f.gap = max(f.gap, part.Gap())
		f.parts = append(f.parts, fmt.Sprintf("%s %d ms (%d of %d failed)", s.Name, part.Gap().Milliseconds(), part.Failed(), len(part.Results)))
	}
	return f
}

func (f figure) String() string { return strings.Join(f.parts, ", ") }

// shared returns how long two nodes answered for the same address.
func (s *stage) shared(claims []whohas.Claim) time.Duration {
	var longest time.Duration
	for _, a := range s.Addresses {
		longest = max(longest, whohas.Overlap(claims, a))
	}
	return longest
}

// settledAfter returns the time from since to the last claim by a node that is not the
// owner at the end.
func (s *stage) settledAfter(claims []whohas.Claim, since time.Time) time.Duration {
	var longest time.Duration
	for _, a := range s.Addresses {
		final := ""
		for _, c := range claims {
			if c.Address == a {
				final = c.MAC
			}
		}
		for _, c := range claims {
			if c.Address == a && c.MAC != final && c.At.After(since) {
				longest = max(longest, c.At.Sub(since))
			}
		}
	}
	return longest
}
