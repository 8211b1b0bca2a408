//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// trouble is one row of the matrix of partial faults: a node has inbound or outbound loss
// while the others work.
type trouble struct {
	name string
	// hit injects the fault, mend ends it; a nil mend heals the network.
	hit, mend func(t *testing.T, s *spread)
	// leaves: other nodes must serve the node's addresses.
	leaves bool
	// stays: no address may move.
	stays bool
	// united: soon after the fault begins every address must have a single owner.
	united bool
	// always: a row of every run.
	always bool
	// lasts is the time from hit to mend; 0 means the value of the flag.
	lasts time.Duration
}

func (tr trouble) shown() bool {
	return tr.always || *matrix && (tr.lasts < longLoss || *long)
}

func (tr trouble) duration() time.Duration {
	switch {
	case tr.lasts > 0:
		return tr.lasts
	case *matrix:
		return *lossTime
	}
	return shortLoss
}

// afterwards is how long the addresses are watched after that.
const afterwards = 2 * time.Second

// run executes one row.
func (s *spread) run(t *testing.T, tr trouble) {
	t.Cleanup(func() { s.repair(t) })
	must(t, s.Calm(t.Context()))
	claims, err := s.Claims(t.Context(), s.host, 20*time.Millisecond, s.addresses...)
	must(t, err)
	streams := s.fetch(t)
	before := s.home(t, claims)

	hit := time.Now()
	tr.hit(t, s)
	must(t, testbed.Holds(t.Context(), tr.duration(), func(context.Context) error { return nil }))
	mended := time.Now()
	if tr.mend != nil {
		tr.mend(t, s)
	} else {
		must(t, s.Cluster.Heal(t.Context()))
	}
	err = testbed.Until(t.Context(), testbed.HoldDownLimit, "the owners to be as before", func(context.Context) error {
		now, err := s.owners(claims)
		if err == nil && !maps.Equal(now, before) {
			err = fmt.Errorf("they are %v, and were %v", now, before)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	back := time.Since(mended)
	// The owners must not change again.
	must(t, testbed.Holds(t.Context(), afterwards, func(context.Context) error { return nil }))
	frames, err := claims.Stop()
	must(t, err)

	t.Logf("matrix: %s: of %s, one of %d speakers, for %s; as before %d ms later", tr.name, s.hit, s.speakers, tr.duration(), back.Milliseconds())
	for _, a := range s.addresses {
		fetches, err := streams[a].Stop()
		must(t, err)
		f := s.fate(a, before[a], fetches, frames, hit, mended)
		t.Logf("matrix: %s: %s", tr.name, f)
		f.judge(t, tr)
	}
}
