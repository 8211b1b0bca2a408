//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"github.com/holdfast-lb/holdfast/e2e/whohas"
)

// parted is the duration of a partition.
const parted = 20 * time.Second

// testL2Partition partitions two nodes, and three, each with a pod, with -matrix only. The client reaches all sides. If
// both sides read the API server, each address soon has one owner; if no side does, both sides serve. After the
// partition each address has one owner.
func testL2Partition(t *testing.T, e *env) {
	if !*matrix {
		t.Skip("shown with -matrix")
	}
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			e.speakersOn(t, e.workers()[:n])
			on := onLAN
			on.pods = n
			s := newSpread(t, e, on)
			t.Run("API server", func(t *testing.T) { s.part(t, e.workers()[:n], true) })
			t.Run("no API server", func(t *testing.T) { s.part(t, e.workers()[:n], false) })
		})
	}
}

// part separates the faulty node from the others.
func (s *spread) part(t *testing.T, nodes []string, api bool) {
	t.Cleanup(func() { s.repair(t) })
	must(t, s.Calm(t.Context()))
	claims, err := s.Claims(t.Context(), s.host, 20*time.Millisecond, s.addresses...)
	must(t, err)
	streams := s.fetch(t)
	s.home(t, claims)
	sides := [][]string{{s.hit}, but(nodes, s.hit)}
	if !api {
		control := s.Cluster.Nodes()[0]
		sides = append(sides, []string{control})
	}
	hit := time.Now()
	must(t, s.Cluster.Partition(t.Context(), sides...))
	must(t, testbed.Holds(t.Context(), parted, func(context.Context) error { return nil }))
	mended := time.Now()
	must(t, s.Cluster.Heal(t.Context()))
	must(t, testbed.Until(t.Context(), settled, "each address to have one owner", func(context.Context) error {
		_, err := s.owners(claims)
		return err
	}))
	united := time.Since(mended)
	must(t, testbed.Holds(t.Context(), afterwards, func(context.Context) error { return nil }))
	frames, err := claims.Stop()
	must(t, err)
	t.Logf("matrix: %s: one owner for each address %d ms after healing", t.Name(), united.Milliseconds())
	for _, a := range s.addresses {
		fetches, err := streams[a].Stop()
		must(t, err)
		failed := 0
		for _, r := range fetches {
			if !r.OK {
				failed++
			}
		}
		contested, last := disputes(frames, a, hit, mended)
		t.Logf("matrix: %s: %s: %d of %d fetches failed, two owners for %d ms, the last time %d ms after the beginning",
			t.Name(), a, failed, len(fetches), contested.Milliseconds(), last.Milliseconds())
		if api && contested > takeover {
			t.Errorf("%s had two owners for %s, want no more than %s", a, contested, takeover)
		}
	}
}

// disputes returns how long two nodes claimed an address during a partition, and the time from its beginning to the last double claim.
func disputes(claims []whohas.Claim, a netip.Addr, hit, mended time.Time) (contested, last time.Duration) {
	for _, span := range whohas.Contested(whohas.Periods(claims, a)) {
		if span.From.Before(mended) && span.To.After(hit) {
			contested += span.To.Sub(span.From)
			last = min(span.To.Sub(hit), mended.Sub(hit))
		}
	}
	return contested, last
}
