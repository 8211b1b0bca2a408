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

// trouble is one row of the matrix of faults that are not clean: of a node that hears
// badly, or is heard badly, beside others that are well.
type trouble struct {
	name string
	// hit makes it, mend ends it; nil heals the network.
	hit, mend func(t *testing.T, s *spread)
	// leaves: others must serve what the node had.
	leaves bool
	// stays: nothing may move.
	stays bool
	// united: soon after it began no address may have two owners any more.
	united bool
	// always: a row of every run of the tests.
	always bool
	// lasts is how long it is left alone before it ends; 0 is as the flag says.
	lasts time.Duration
	// settles is how long it may take until all is as before; 0 is what is promised.
	settles time.Duration
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

// afterwards is how long the addresses are watched when all is as before.
const afterwards = 2 * time.Second

// run shows one row.
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
	limit := settled
	if tr.settles > 0 {
		limit = tr.settles
	}
	err = testbed.Until(t.Context(), limit, "the owners to be as before", func(context.Context) error {
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
	// It has to stay so.
	must(t, testbed.Holds(t.Context(), afterwards, func(context.Context) error { return nil }))
	heard, err := claims.Stop()
	must(t, err)

	t.Logf("matrix: %s: of %s, one of %d speakers, for %s; as before %d ms later", tr.name, s.hit, s.speakers, tr.duration(), back.Milliseconds())
	for _, a := range s.addresses {
		fetches, err := streams[a].Stop()
		must(t, err)
		f := s.fate(a, before[a], fetches, heard, hit, mended)
		t.Logf("matrix: %s: %s", tr.name, f)
		f.judge(t, tr)
	}
}
