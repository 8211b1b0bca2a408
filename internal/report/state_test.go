package report

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/apitest"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/liveness"
)

// TestInterval: how long after the last write the next one may come.
func TestInterval(t *testing.T) {
	unreachable := liveness.Silence{Unreachable: []liveness.SilentNode{{Node: "u"}}}
	for _, tt := range []struct {
		name           string
		changed, burst bool
		silence        liveness.Silence
		alive          int
		min            time.Duration
	}{
		{"nothing changed", false, true, liveness.Silence{}, 100, refreshInterval},
		{"an address is owned", true, false, liveness.Silence{}, 3, stateInterval},
		{"an address is owned, by one of many speakers", true, false, liveness.Silence{}, 400, 4 * time.Second},
		{"an address is owned, in a burst", true, true, liveness.Silence{}, 3, burstWait},
		{"that does not delay a silence", true, true, unreachable, 500, 0},
	} {
		w := &stateWriter{inBurst: func() bool { return tt.burst }, silence: tt.silence, writtenAt: time.Unix(1, 0)}
		if got := w.interval(tt.changed, tt.alive, false); got != tt.min {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.min)
		}
	}
}

// TestNodeProblems: the state has a bounded part of the problems.
func TestNodeProblems(t *testing.T) {
	if got := nodeProblems(nil); got != nil {
		t.Errorf("no problem: %v", got)
	}
	many := slices.Repeat([]lb.Problem{{Reason: lb.KernelFeatureMissing, Message: strings.Repeat("m", 10_000)}},
		2*maxProblems)
	got := nodeProblems(many)
	if len(got) != maxProblems || got[0].Reason != "KernelFeatureMissing" || len(got[0].Message) > 8192 {
		t.Errorf("%d problems, the first has %d bytes", len(got), len(got[0].Message))
	}
}

// TestClosedEgress: the state has a bounded part of the Services of whose pods the node rejects connections, and counts
// all of them.
func TestClosedEgress(t *testing.T) {
	last := &lastStanding{}
	w := &stateWriter{last: last, sessions: &sessionGate{}, Config: Config{
		Layer2:      noLayer2{},
		Sessions:    func() []lb.Session { return nil },
		Speakers:    func() map[lb.MAC]string { return nil },
		KeysVersion: func() string { return "" },
		ProxyFaults: func() map[lb.Key]lb.Reason { return nil },
	}}
	closing := lb.EgressClosing{
		Service: lb.Key{Namespace: "ns", Name: "web"}, Addresses: 3, Why: "line\n" + strings.Repeat("ü", 10_000),
	}

	last.Store(&Standing{})
	before := w.status(1, 1)
	last.Store(&Standing{Closings: slices.Repeat([]lb.EgressClosing{closing}, 2*maxClosings)})
	after := w.status(1, 1)
	if before.EgressClosed != nil || before.EgressClosedCount != 0 || sameStatus(before, after) {
		t.Errorf("without closings: %+v", before)
	}
	if len(after.EgressClosed) != maxClosings || after.EgressClosedCount != 2*maxClosings {
		t.Fatalf("%d of %d", len(after.EgressClosed), after.EgressClosedCount)
	}
	first := after.EgressClosed[0]
	if first.Service != "ns/web" || first.PodAddresses != 3 || !strings.HasPrefix(first.Message, "line ü") {
		t.Errorf("%+v", first)
	}

	state := map[string]any{
		"apiVersion": v1beta1.GroupVersion.String(), "kind": "SpeakerState", "metadata": map[string]any{"name": "w1"},
	}
	change := map[string]any{"status": map[string]any{
		"egressClosed": after.EgressClosed, "egressClosedCount": after.EgressClosedCount,
	}}
	if _, err := apitest.Patched(t, state, change); err != nil {
		t.Error(err)
	}
}

// noLayer2 is a Layer2 without links.
type noLayer2 struct{}

func (noLayer2) State() lb.Layer2                         { return lb.Layer2{} }
func (noLayer2) Networks() ([]netip.Prefix, []netip.Addr) { return nil, nil }
func (noLayer2) Announcing() bool                         { return false }

// TestKeysVersion: the state has the version of the members' Secret that the speaker has read at that moment.
func TestKeysVersion(t *testing.T) {
	version := ""
	w := &stateWriter{last: &lastStanding{}, sessions: &sessionGate{}, Config: Config{
		Layer2:      noLayer2{},
		Sessions:    func() []lb.Session { return nil },
		Speakers:    func() map[lb.MAC]string { return nil },
		KeysVersion: func() string { return version },
		ProxyFaults: func() map[lb.Key]lb.Reason { return nil },
	}}
	before := w.status(3, 3)
	version = "42"
	after := w.status(3, 3)
	if before.KeysVersion != "" || after.KeysVersion != "42" || sameStatus(before, after) {
		t.Errorf("the state has version %q, then %q", before.KeysVersion, after.KeysVersion)
	}
}
