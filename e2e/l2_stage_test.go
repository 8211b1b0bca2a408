//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"github.com/holdfast-lb/holdfast/e2e/whohas"
)

// Ports where speakers reach each other: gossip, and heartbeats.
const (
	membersPort   = 7947
	heartbeatPort = 7948
)

// stage is where the faults of layer 2 are shown: two workers announce a Service's
// addresses, and its pod is on the third, so that a figure is of the announcement
// and not of kube-proxy's view of dead pods. The third announces only what the two cannot.
type stage struct {
	*env
	anchor     string
	announcers []string
	addresses  []netip.Addr
}

func newStage(t *testing.T, e *env) *stage {
	t.Helper()
	s := &stage{env: e, anchor: e.workers()[0], announcers: e.workers()[1:]}
	e.pool(t, "e2e-l2", `addresses: [172.30.0.192/28, "fd00:30::2:0/112"]`)
	e.apply(t, object("L2Advertisement", "e2e-l2", `{ipAddressPools: [e2e-l2], preferredNodeSelectors: [{weight: 100, preference: {matchExpressions: [
		{key: kubernetes.io/hostname, operator: In, values: [`+strings.Join(s.announcers, ", ")+`]}]}}]}`))
	app := e.app
	app.Name, app.Replicas, app.Nodes = "l2-stage", 1, []string{s.anchor}
	must(t, e.Deploy(t.Context(), app))
	s.addresses = e.service(t, app, "l2-stage", pool("e2e-l2"))
	e.served(t, testbed.Client, s.addresses)
	return s
}

// owner waits until one of the two owns both addresses, and returns it: a node that
// was away takes back only after a while.
func (s *stage) owner(t *testing.T) string {
	t.Helper()
	var owner string
	must(t, testbed.Until(t.Context(), 2*time.Minute, "one of "+strings.Join(s.announcers, ", ")+" to own the addresses", func(ctx context.Context) error {
		var owners []string
		for _, a := range s.addresses {
			o, err := s.WaitOwner(ctx, testbed.Client, a)
			if err != nil {
				return err
			}
			owners = append(owners, o)
		}
		if owner = owners[0]; owners[1] != owner || !slices.Contains(s.announcers, owner) {
			return fmt.Errorf("the owners are %v", owners)
		}
		return nil
	}))
	return owner
}

// other is the announcer that is not the owner.
func (s *stage) other(owner string) string { return but(s.announcers, owner)[0] }

// watch probes both addresses over TCP and UDP.
func (s *stage) watch(t *testing.T) *testbed.Watch {
	t.Helper()
	tcp, err := s.Watch(t.Context(), testbed.Client, probe.TCP, s.addresses)
	must(t, err)
	udp, err := s.Watch(t.Context(), testbed.Client, probe.UDP, s.addresses)
	must(t, err)
	return tcp.Join(udp)
}

// figure is what a client saw in a part of the time.
type figure struct {
	failed int
	gap    time.Duration
	words  []string
}

// between returns the figure of the probes that were started in a part of the time.
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
		f.words = append(f.words, fmt.Sprintf("%s %d ms (%d of %d failed)", s.Name, part.Gap().Milliseconds(), part.Failed(), len(part.Results)))
	}
	return f
}

func (f figure) String() string { return strings.Join(f.words, ", ") }

// doubled says for how long two nodes answered for the same address.
func (s *stage) doubled(claims []whohas.Claim) time.Duration {
	var longest time.Duration
	for _, a := range s.addresses {
		longest = max(longest, whohas.Overlap(claims, a))
	}
	return longest
}

// united returns how long after a time the last of those who do not own the
// addresses in the end still claimed one.
func (s *stage) united(claims []whohas.Claim, since time.Time) time.Duration {
	var longest time.Duration
	for _, a := range s.addresses {
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
