package ipam

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const stepsOfHistory = 150

// TestHistory plays random histories of 10^5 steps in all, fewer under the race
// detector or -short. HISTORY_SEED replays one of them.
func TestHistory(t *testing.T) {
	histories := 680
	if testing.Short() || raceEnabled {
		histories = 10
	}
	first, histories := seeds(t, histories)
	t.Logf("seeds %d to %d, %d steps", first, first+uint64(histories)-1, histories*stepsOfHistory)
	var all book
	for seed := first; seed < first+uint64(histories); seed++ {
		all.add(play(t, seed))
	}
	if histories > 1 {
		all.check(t, 20, 5)
	}
}

// seeds returns the first seed and the number of histories, or the one seed in HISTORY_SEED.
func seeds(t *testing.T, histories int) (first uint64, count int) {
	t.Helper()
	text := os.Getenv("HISTORY_SEED")
	if text == "" {
		return 1000, histories
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return seed, 1
}

// FuzzHistory drives Assign through a random history: Services, pools and
// FloatingIPs come, change and go; statuses are lost, duplicated and written by
// others; the controller sees changes late, dies between two writes or loses
// leadership. invariant_test.go checks the invariants by brute force over
// pools of a few addresses. A failing seed is printed; HISTORY_SEED=SEED with
// -run TestHistory replays it.
//
// The first 200 seeds find each of these planted bugs: an address is assigned that is in
// another object's status, was released in the same decision, is reserved, belongs
// to a Service that is leaving, waits for reuseDelay, is excluded by avoidBuggyIPs, or
// is from a pool that is being deleted or does not select the Service; the quota or
// maxServices is exceeded by one; an address goes when its pool is cut; two Services
// share a port, or share across scopes or namespaces without permission; a FloatingIP
// is claimed from another namespace, or dissolved in use; the younger keeps what two
// have; a request falls back to something else; a dual-stack Service gets one family
// only; a restored Service takes what others have; releases are not recorded. Two more,
// found by histories 20950 and 21001 only, have tests in floating_test.go.
func FuzzHistory(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { play(t, seed) })
}

func play(t *testing.T, seed uint64) *book {
	h := &history{Rand: rand.New(rand.NewPCG(seed, 0)), mild: seed%3 == 0, book: newBook(seed)}
	for step := range stepsOfHistory {
		h.change()
		before, result, err := h.sync()
		if err != nil {
			t.Fatalf("HISTORY_SEED=%d, step %d: %v\npools: %s\nservices: %s\nfloating: %s\nleaving: %v\nreserved: %v\nnow: %v\nresult:\n%s", seed, step, err,
				cmp.Diff(nil, before.Pools), cmp.Diff(nil, before.Services), cmp.Diff(nil, before.FloatingIPs), before.Leaving, before.Reserved, before.Now, cmp.Diff(nil, text(result)))
		}
	}
	return h.book
}

// history is a cluster that changes at random, and a controller that reads it.
type history struct {
	*rand.Rand
	state lb.State
	// seen is what the controller's caches show: the cluster some steps ago, with its own writes.
	seen lb.State
	born int
	// alien: others wrote statuses since the controller last saw everything.
	alien bool
	// mild histories change less, so that a Ledger has something to carry over.
	mild bool
	book *book
}

func (h *history) oneIn(n int) bool { return h.IntN(n) == 0 }

func pick[T any](h *history, from ...T) T { return from[h.IntN(len(from))] }

// sync is one run of the controller, checked. Most runs see all and write all; some
// see an older state, some die between two writes.
func (h *history) sync() (lb.State, Result, error) {
	h.state.Now = time.Unix(int64(h.born)*30, 0)
	stale, dies := h.oneIn(6), h.oneIn(6)
	if !stale {
		h.seen = h.state
	}
	h.seen.Now = h.state.Now
	seen := h.seen
	result := Assign(seen)
	if err := errors.Join(checkAll(seen, result), h.book.compare(seen, result)); err != nil {
		return seen, result, err
	}
	if !dies && !stale {
		if err := checkAgain(seen, result, Assign(applied(seen, result))); err != nil {
			return seen, result, err
		}
	}
	after := write(h.state, seen, result, func() bool { return !dies || h.oneIn(2) })
	if !h.alien {
		if err := checkWrites(h.state, after); err != nil {
			return h.state, result, err
		}
	}
	if stale {
		h.seen = write(seen, seen, result, func() bool { return !dies })
		h.seen.Now = h.state.Now
	}
	h.state = after
	if dies {
		h.seen = after // a new leader reads past its caches
	} else if !stale {
		h.seen, h.alien = after, false
	}
	return seen, result, nil
}

// checkWrites: whatever the caches showed, no write assigns an address whose
// holder does not share it.
func checkWrites(before, after lb.State) error {
	had := map[string]map[lb.Key]bool{}
	for _, svc := range before.Services {
		for _, addr := range svc.Addresses {
			if had[addr.String()] == nil {
				had[addr.String()] = map[lb.Key]bool{}
			}
			had[addr.String()][svc.Key] = svc.SharingKey == "" && svc.LoadBalancerID == "" && svc.UID == ""
		}
	}
	for _, svc := range after.Services {
		for _, addr := range svc.Addresses {
			holders := had[addr.String()]
			if _, before := holders[svc.Key]; before {
				continue
			}
			for key, alone := range holders {
				if alone {
					return fmt.Errorf("%s was written to %s, though %s has it", addr, svc.Key, key)
				}
			}
		}
	}
	return nil
}
