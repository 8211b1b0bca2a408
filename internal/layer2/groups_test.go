package layer2

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeKernel holds memberships like the kernel, and counts calls.
type fakeKernel struct {
	joined map[membership]bool
	// refuses are links that reject groups, like those without IPv6.
	refuses map[int]bool
	calls   int
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{joined: make(map[membership]bool), refuses: make(map[int]bool)}
}

func (k *fakeKernel) actual() (map[membership]bool, error) { return maps.Clone(k.joined), nil }

func (k *fakeKernel) join(m membership) error {
	k.calls++
	if k.refuses[m.index] || k.joined[m] {
		return errors.New("join group: invalid argument")
	}
	k.joined[m] = true
	return nil
}

func (k *fakeKernel) leave(m membership) error {
	k.calls++
	delete(k.joined, m)
	return nil
}

func (*fakeKernel) close() {}

func TestGroups(t *testing.T) {
	k := newFakeKernel()
	var repairs atomic.Uint64
	g := newGroups(slog.New(slog.DiscardHandler), time.Hour, &repairs)
	g.kernel, g.actual = k, k.actual

	group := func(index, n int) membership {
		return membership{index, netip.MustParseAddr(fmt.Sprintf("ff02::1:ff00:%x", n))}
	}
	a, b, c := group(2, 1), group(2, 2), group(3, 1)
	set := func(ms ...membership) map[membership]bool {
		s := make(map[membership]bool)
		for _, m := range ms {
			s[m] = true
		}
		return s
	}
	for _, tt := range []struct {
		name            string
		before          func()
		desired, joined map[membership]bool
		calls           int
		repairs         uint64
	}{
		{"none", func() {}, set(), set(), 0, 0},
		{"join", func() {}, set(a, b), set(a, b), 2, 0},
		{"again", func() {}, set(a, b), set(a, b), 0, 0},
		{"move", func() {}, set(b, c), set(b, c), 2, 0},
		{"lost", func() { delete(k.joined, c) }, set(b, c), set(b, c), 2, 1},
		{"refused", func() { k.refuses[2] = true }, set(a, b, c, group(2, 3)), set(b, c), 1, 1},
		{"no longer refused", func() { k.refuses[2] = false }, set(a, b, c), set(a, b, c), 1, 1},
		{"leave all", func() {}, set(), set(), 3, 1},
	} {
		k.calls = 0
		tt.before()
		g.set(tt.desired)
		g.sync()
		if !maps.Equal(tt.joined, k.joined) {
			t.Errorf("%s: %v, want %v", tt.name, k.joined, tt.joined)
		}
		if k.calls != tt.calls || repairs.Load() != tt.repairs {
			t.Errorf("%s: %d calls and %d repairs, want %d and %d", tt.name, k.calls, repairs.Load(), tt.calls, tt.repairs)
		}
	}
}

func TestParseIGMP6(t *testing.T) {
	got := make(map[string]bool)
	for m := range parseIGMP6([]byte(`1    lo              ff020000000000000000000000000001     1 0000000C 0
2    eth0            ff0200000000000000000001ff000100     1 00000004 0
2    eth0
x    eth0            ff020000000000000000000000000002     1 00000004 0
2    eth0            ff0200000000000000000001ff0001zz     1 00000004 0
`)) {
		got[m.String()] = true
	}
	want := map[string]bool{"ff02::1%1": true, "ff02::1:ff00:100%2": true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
