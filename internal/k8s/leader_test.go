package k8s

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
	coordinationv1 "k8s.io/api/coordination/v1"
)

// withStandby runs a test with the leader a and the standby b, of which both have had some quiet seconds.
func withStandby(t *testing.T, test func(t *testing.T, w *world, a *process)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start("a")
		sleep(t.Context(), 5*time.Second)
		b := w.start("b")
		sleep(t.Context(), 5*time.Second+123*time.Millisecond)
		test(t, w, a)
		w.end(a, b)
	})
}

// TestLeaderDies: the next leader writes within 3 s if most speakers miss the node, and else after 15 s.
func TestLeaderDies(t *testing.T) {
	for _, tt := range []struct {
		missed       bool
		from, within time.Duration
	}{
		{true, 2 * time.Second, 3 * time.Second},
		{false, 14500 * time.Millisecond, 15500 * time.Millisecond},
	} {
		withStandby(t, func(t *testing.T, w *world, a *process) {
			died := time.Now()
			a.powerOff()
			sleep(t.Context(), 150*time.Millisecond)
			w.set(func() { w.missed = tt.missed })
			sleep(t.Context(), 20*time.Second)
			if took := w.firstWrite("b", died).Sub(died); took < tt.from || took > tt.within {
				t.Errorf("missed %t: b writes after %v", tt.missed, took)
			}
		})
	}
}

// TestLeaderReleases: in good order the next leader follows at once.
func TestLeaderReleases(t *testing.T) {
	withStandby(t, func(t *testing.T, w *world, a *process) {
		stopped := time.Now()
		w.end(a)
		sleep(t.Context(), time.Second)
		if took := w.firstWrite("b", stopped).Sub(stopped); took < 0 || took > readInterval+50*time.Millisecond {
			t.Errorf("b writes after %v", took)
		}
	})
}

// TestLeaderReadsAnother: a leader that stood still ends as soon as it reads another holder.
func TestLeaderReadsAnother(t *testing.T) {
	withStandby(t, func(t *testing.T, w *world, a *process) {
		w.set(func() { w.missed = true })
		a.stop(20 * time.Second)
		moves := time.Now().Add(20 * time.Second)
		if err := <-a.ended; !errors.Is(err, ErrLeadershipLost) || time.Since(moves) > time.Second {
			t.Errorf("ended %v after it woke up, with %v", time.Since(moves), err)
		}
	})
}

// TestLeaderAPIServerAway: when the API server is back after ten seconds the same leader writes on at once.
func TestLeaderAPIServerAway(t *testing.T) {
	withStandby(t, func(t *testing.T, w *world, _ *process) {
		w.set(func() { w.away = true })
		sleep(t.Context(), 10*time.Second)
		back := time.Now()
		w.set(func() { w.away = false })
		sleep(t.Context(), 5*time.Second)
		if took := w.firstWrite("a", back).Sub(back); took < 0 || took > time.Second || len(w.takes) != 1 {
			t.Errorf("a writes %v after the API server is back, the Lease was taken %v", took, w.takes)
		}
	})
}

// TestLeaderSlowServer: a replica leads on an API server that takes 0.8 s for everything, and the next one after a
// death.
func TestLeaderSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.slowness = func(bool) (time.Duration, time.Duration) { return 400 * time.Millisecond, 400 * time.Millisecond }
		a := w.start("a")
		sleep(t.Context(), 5*time.Second)
		b := w.start("b")
		sleep(t.Context(), 5*time.Second)
		died := time.Now()
		a.powerOff()
		w.set(func() { w.missed = true })
		sleep(t.Context(), 20*time.Second)
		if took := w.firstWrite("b", died).Sub(died); took < 0 || took > 8*time.Second {
			t.Errorf("b writes after %v", took)
		}
		w.end(a, b)
	})
}

// TestLeaderLapsed: a leader whose renewals fail, and nothing else, stops writing in time.
func TestLeaderLapsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start("a")
		sleep(t.Context(), 5*time.Second)
		w.set(func() { w.deaf = true })
		lapsed := time.Now()
		sleep(t.Context(), 5*time.Second)
		late := w.lastWrite("a").Sub(lapsed)
		if late > writeTime || late < writeTime-renewInterval-writeMargin-50*time.Millisecond {
			t.Errorf("the last write is %v after the last renewal", late)
		}
		w.end(a)
	})
}

// TestMayTake: when a standby may take the Lease, by its monotonic clock alone.
func TestMayTake(t *testing.T) {
	held := func(by string) *coordinationv1.LeaseSpec {
		return &coordinationv1.LeaseSpec{HolderIdentity: &by, LeaseDurationSeconds: new(int32(15))}
	}
	for _, tt := range []struct {
		record *coordinationv1.LeaseSpec
		missed bool
		after  time.Duration
	}{
		{held("other"), false, silentLeaseTime},
		{held("other"), true, missedLeaseTime},
		{held(""), false, 0},
		{held("self"), false, 0},
		{nil, false, missedLeaseTime},
	} {
		start := time.Now()
		o := leaseObservation{tt.record, start}
		for _, set := range []time.Duration{0, time.Hour, -time.Hour} {
			at := nstest.SetClock(start.Add(tt.after), set)
			differs := !o.mayAcquire(at, "self", tt.missed) ||
				tt.after > 0 && o.mayAcquire(at.Add(-time.Millisecond), "self", tt.missed)
			if differs {
				t.Errorf("%+v, missed %t, clock set by %v: not after exactly %v", tt.record, tt.missed, set, tt.after)
			}
		}
	}
}

func TestHolderNode(t *testing.T) {
	for _, node := range []string{"w1", "w1.example.com", ""} {
		if got := holderNode(Candidate{Identity: "pod-1_123", Node: node}.holder()); got != node {
			t.Errorf("%q: %q", node, got)
		}
	}
}

// TestLeaderHistory plays random histories: two processes of which each may stand still at any point, lose its power,
// or be stopped and started; an API server that is slow or away; speakers that miss any node at any time. No
// write of one ever lands while the Lease is another's. HISTORY_SEED replays one.
func TestLeaderHistory(t *testing.T) {
	first, count := uint64(1), uint64(60)
	if testing.Short() {
		count = 10
	}
	if seed, err := strconv.ParseUint(os.Getenv("HISTORY_SEED"), 10, 64); err == nil {
		first, count = seed, 1
	}
	var takes, writes, refused int
	for seed := first; seed < first+count && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			w := leaderHistory(t, seed)
			takes, writes, refused = takes+len(w.takes), writes+len(w.writes), refused+w.refused
		})
		if t.Failed() {
			t.Logf("HISTORY_SEED=%d", seed)
		}
	}
	t.Logf("%d leaders, %d writes, %d writes refused", takes, writes, refused)
	if count > 1 && (takes < 5*int(count) || refused == 0) {
		t.Error("too little happened")
	}
}

// chance is random for a whole world. Its methods may be called by several goroutines.
type chance struct {
	mu sync.Mutex
	*rand.Rand
	// one in so many times is long.
	long int
}

// upTo returns a time that is mostly short, and at most d.
func (c *chance) upTo(d time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.IntN(c.long) > 0 {
		d /= 50
	}
	return time.Duration(c.Int64N(int64(d)))
}

func (c *chance) n(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.IntN(n)
}

func leaderHistory(t *testing.T, seed uint64) *world {
	c := &chance{Rand: rand.New(rand.NewPCG(seed, 0)), long: 2 + int(seed%8)}
	w := newWorld(t)
	w.missed = true
	w.slowness = func(write bool) (time.Duration, time.Duration) {
		if !write && seed%3 > 0 {
			return time.Millisecond, time.Millisecond // the Lease is never slow, so that it is taken as soon as it may
		}
		return c.upTo(4 * time.Second), c.upTo(2 * time.Second)
	}
	w.between = func() (time.Duration, time.Duration) { return c.upTo(4 * time.Second), c.upTo(time.Second) }
	made := 0
	start := func() *process {
		made++
		return w.start(fmt.Sprintf("p%d", made))
	}
	both := []*process{start(), start()}
	for range 100 {
		sleep(t.Context(), c.upTo(10*time.Second)+time.Duration(c.n(3))*time.Second)
		if c.n(2) == 0 {
			w.set(func() { w.away = false })
		}
		i := c.n(2)
		switch c.n(8) {
		case 0:
			both[i].powerOff()
			<-both[i].ended
			both[i] = start()
		case 1:
			w.end(both[i])
			both[i] = start()
		case 2:
			w.set(func() { w.away = true })
		case 3:
			w.set(func() { w.missed = !w.missed })
		default:
			both[i].stop(c.upTo(20 * time.Second))
		}
		for i, p := range both {
			select {
			case <-p.ended: // lost
				both[i] = start()
			default:
			}
		}
	}
	w.set(func() { w.away = false })
	w.end(both...)
	sleep(t.Context(), time.Minute) // whatever is still under way lands
	return w
}

// answering is what is behind a fence.
type answering func(*http.Request) *http.Response

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) { return a(r), nil }

// TestFenceHidesRetryAfter: the client sends nothing again by itself after an answer that proves nothing. The refusal
// of the second write would hide that the first has landed.
func TestFenceHidesRetryAfter(t *testing.T) {
	for code, want := range map[int]string{
		http.StatusTooManyRequests: "1", http.StatusServiceUnavailable: "", http.StatusGatewayTimeout: "",
	} {
		term := &leaderTerm{}
		term.renewed.Store(new(time.Now()))
		r, err := http.NewRequestWithContext(term.context(t.Context()), http.MethodPatch, "http://api/x", http.NoBody)
		must(t, err)
		busy := failure(code, "")
		busy.Header.Set("Retry-After", "1")
		answer, err := fencedTransport{answering(func(*http.Request) *http.Response { return busy })}.RoundTrip(r)
		must(t, err)
		if got := answer.Header.Get("Retry-After"); got != want {
			t.Errorf("%d: %q", code, got)
		}
	}
}

// TestFence: which requests of a leader pass, and how long they may take.
func TestFence(t *testing.T) {
	for name, tt := range map[string]struct {
		method  string
		age     time.Duration
		over    bool
		refused error
	}{
		"renewed just now":      {method: http.MethodPatch},
		"in time":               {method: http.MethodPost, age: writeTime - writeMargin},
		"too little time left":  {method: http.MethodPatch, age: writeTime - writeMargin + 1, refused: errLeaseLapsed},
		"lapsed":                {method: http.MethodDelete, age: time.Hour, refused: errLeaseLapsed},
		"decided in a term ago": {method: http.MethodPut, over: true, refused: context.Canceled},
		"a read":                {method: http.MethodGet, age: time.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			started := time.Now()
			term := &leaderTerm{}
			term.renewed.Store(new(started.Add(-tt.age)))
			ctx, cancel := context.WithCancel(term.context(t.Context()))
			defer cancel()
			if tt.over {
				cancel()
			}
			r, err := http.NewRequestWithContext(ctx, tt.method, "http://api/x?a=b", http.NoBody)
			must(t, err)
			var sent *http.Request
			_, err = fencedTransport{answering(func(r *http.Request) *http.Response {
				sent = r
				return failure(http.StatusOK, "")
			})}.RoundTrip(r)
			if !errors.Is(err, tt.refused) || (sent == nil) != (tt.refused != nil) {
				t.Fatalf("%s: %v, sent: %v", name, err, sent)
			}
			if tt.method == http.MethodGet || tt.refused != nil {
				return
			}
			deadline, _ := sent.Context().Deadline()
			query := sent.URL.Query()
			want := writeTime - tt.age
			if deadline.Sub(started) != want || query.Get("timeout") != want.String() || query.Get("a") != "b" {
				t.Errorf("%s: ends after %v, query %v, want %v", name, deadline.Sub(started), query, want)
			}
		})
	}
}
