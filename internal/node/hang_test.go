package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// hangers are nodes that plan by the real rules and learn at once which of them stop. A node keeps an address until
// another one announces it.
type hangers struct {
	mu       sync.Mutex
	state    lb.State
	owners   map[netip.Addr]string
	nodes    map[string]*hanger
	stopping map[string]bool
	// moves counts changes of owners.
	moves int
}

type hanger struct {
	*hang
	loop *daemon.Loop
	// stuck is how long the next run takes, waits how long the process waits for a core meanwhile, in each second.
	stuck, waits time.Duration
	start        time.Time
	// freezes is how long the process does not run once.
	freezes time.Duration
}

// hangAddresses is how many Services with an address the nodes have.
const hangAddresses = 12

// hangState has these nodes, which live, and the Services.
func hangState(names ...string) lb.State {
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }
	s := lb.State{
		Nodes: map[string]lb.Node{}, Members: map[string]bool{}, L2Advertisements: []lb.L2Advertisement{{Name: "l2"}},
		Pools: []lb.Pool{{Name: "lan", Ranges: []lb.Range{{From: address(0), To: address(255)}}}},
	}
	for _, name := range names {
		s.Nodes[name], s.Members[name] = lb.Node{Name: name}, true
	}
	for i := range hangAddresses {
		s.Services = append(s.Services, &lb.Service{
			Key: lb.Key{Namespace: "default", Name: fmt.Sprint(i)}, Addresses: []netip.Addr{address(i)},
			Backends: servedOn("w1"),
		})
	}
	return s
}

func newHangers(names ...string) *hangers {
	h := &hangers{
		owners: map[netip.Addr]string{}, nodes: map[string]*hanger{}, stopping: map[string]bool{},
		state: hangState(names...),
	}
	for _, name := range names {
		n := &hanger{start: time.Now()}
		n.loop = daemon.NewLoop(daemon.LoopConfig{
			Log: slog.New(slog.DiscardHandler), Sync: func(ctx context.Context) (time.Duration, error) {
				h.mu.Lock()
				stuck := n.stuck
				n.stuck = 0
				h.mu.Unlock()
				select {
				case <-time.After(stuck):
					h.plan(name)
				case <-ctx.Done():
				}
				return 0, nil
			},
		})
		n.hang = &hang{
			loop: n.loop, orphanTime: minOrphanTime,
			schedDelay: func() time.Duration {
				h.mu.Lock()
				freezes, waits := n.freezes, n.waits
				n.freezes = 0
				h.mu.Unlock()
				time.Sleep(freezes)
				return time.Duration(time.Since(n.start).Seconds() * float64(waits))
			},
			offer: func() { h.stop(name, true) },
			countOffered: func() int {
				h.mu.Lock()
				defer h.mu.Unlock()
				return strings.Count(strings.Join(slices.Collect(maps.Values(h.owners)), " "), name)
			},
		}
		h.nodes[name] = n
	}
	return h
}

func (h *hangers) stop(name string, stops bool) {
	h.mu.Lock()
	changed := h.stopping[name] != stops
	h.stopping[name] = stops
	h.mu.Unlock()
	if changed {
		for _, n := range h.nodes {
			n.loop.Kick()
		}
	}
}

// plan is the end of a run.
func (h *hangers) plan(name string) {
	h.stop(name, false)
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.state
	s.Stopping = maps.Clone(h.stopping)
	for a := range plan.ForNode(name, s).Announcements.Keys() {
		if h.owners[a] != name {
			h.owners[a] = name
			h.moves++
		}
	}
}

// TestHang has a plan loop hang. Other nodes take over within 12 s, and the process is restarted once they have all of
// its addresses. If no node can take them, it keeps them, and is restarted after ten minutes. A process that waits for
// a core, or was frozen, does not hang.
//
// Trap: the process answers its probes while nothing is planned, so that its addresses stay where they are for ever.
func TestHang(t *testing.T) {
	for _, tt := range []struct {
		name  string
		nodes string
		hang  string
		stuck time.Duration
		// waits is how long the processes wait for a core in each second, freezes how long they stand still once.
		waits, freezes time.Duration
		// moves: others have the addresses of w1 after 12 s. dies is when /healthz of w1 fails, counted from the
		// beginning; 0 for never.
		moves bool
		dies  time.Duration
	}{
		{"one of three", "w1 w2 w3", "w1", time.Hour, 0, 0, true, 12 * time.Second},
		{"two of three", "w1 w2 w3", "w1 w2", time.Hour, 0, 0, true, 12 * time.Second},
		{"all", "w1 w2 w3", "w1 w2 w3", time.Hour, 0, 0, false, minOrphanTime + 10*time.Second},
		{"the only one", "w1", "w1", time.Hour, 0, 0, false, minOrphanTime + 10*time.Second},
		{"for half a minute", "w1 w2 w3", "w1", 30 * time.Second, 0, 0, true, 12 * time.Second},
		{"for nine seconds", "w1 w2 w3", "w1", 9 * time.Second, 0, 0, false, 0},
		{"it waits for a core", "w1 w2 w3", "w1", time.Hour, 5 * time.Second, 0, false, 0},
		{"it was frozen for a minute", "w1 w2 w3", "w1", 65 * time.Second, 0, time.Minute, false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHangers(strings.Fields(tt.nodes)...)
				for _, n := range h.nodes {
					background(t, n.Run)
				}
				time.Sleep(time.Minute + 100*time.Millisecond)
				before := h.nodes["w1"].countOffered()
				if before == 0 {
					t.Fatal("w1 has nothing, so nothing is tested")
				}
				h.mu.Lock()
				for _, name := range strings.Fields(tt.hang) {
					h.nodes[name].stuck, h.nodes[name].waits, h.nodes[name].freezes = tt.stuck, tt.waits, tt.freezes
				}
				moves := h.moves
				h.mu.Unlock()
				for _, name := range strings.Fields(tt.hang) {
					h.nodes[name].loop.Kick()
				}
				start := time.Now()
				time.Sleep(12 * time.Second)
				if moved := h.nodes["w1"].countOffered() == 0; moved != tt.moves {
					t.Errorf("after 12 s w1 has %d of %d addresses", h.nodes["w1"].countOffered(), before)
				}
				var died time.Duration
				for died == 0 && time.Since(start) < 20*time.Minute {
					if err := h.nodes["w1"].alive(); err != nil {
						died = time.Since(start)
					}
					time.Sleep(time.Second)
				}
				if died < tt.dies || died > tt.dies+4*time.Second {
					t.Errorf("/healthz fails after %v, want %v", died, tt.dies)
				}
				h.mu.Lock()
				defer h.mu.Unlock()
				if len(h.owners) != hangAddresses || !tt.moves && h.moves != moves {
					t.Errorf("%d addresses have owners, and %d moved", len(h.owners), h.moves-moves)
				}
			})
		})
	}
}

// TestHangAtTheEnd: a process that is to end while a run hangs does.
func TestHangAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := daemon.NewLoop(daemon.LoopConfig{
			Log: slog.New(slog.DiscardHandler), Sync: func(context.Context) (time.Duration, error) {
				time.Sleep(time.Minute)
				return 0, nil
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err := (&hang{loop: stuck, schedDelay: func() time.Duration { return 0 }}).Run(ctx)
		if !errors.Is(err, errHangs) || time.Since(start) > time.Second+endTime {
			t.Errorf("it ends after %v: %v", time.Since(start), err)
		}
		time.Sleep(time.Minute)
	})
}
