package kernel

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// refusals is a kernel that refuses some features.
type refusals map[Feature]Lack

// try returns attempts of all features in order.
func (r refusals) tries() (out []Try) {
	for f := PacketFilter; f <= Realtime; f++ {
		out = append(out, Try{f, func() (string, error) { return r[f].Part, r[f].Err }})
	}
	return out
}

// words shows what is missing.
func (m *Monitor) words() string {
	var out []string
	for _, l := range m.Missing() {
		out = append(out, strings.TrimSpace(fmt.Sprint(features[l.Feature].name, " ", l.Part)))
	}
	return strings.Join(out, ", ")
}

func TestMissing(t *testing.T) {
	no := syscall.EOPNOTSUPP
	for _, tt := range []struct {
		name   string
		kernel refusals
		want   string
	}{
		{"everything is there", refusals{}, ""},
		{"no dup", refusals{RelaysIPv4: {Part: "dup", Err: no}, RelaysIPv6: {Part: "dup", Err: no}}, "relays of IPv4 dup, relays of IPv6 dup"},
		{"no labels of conntrack", refusals{InternalTraffic: {Part: "ct", Err: no}}, "the rewriting of traffic from within the cluster ct"},
		{"no nf_tables", refusals{PacketFilter: {Err: no}, InternalTraffic: {Err: no}, ConnectionLimits: {Err: no}, DropLogs: {Err: no}}, "the packet filter"},
		{"neither packet sockets nor priority", refusals{PacketSockets: {Err: syscall.EPERM}, Realtime: {Err: syscall.EPERM}}, "packet sockets, real-time priority"},
	} {
		m := New(Config{Log: slog.New(slog.DiscardHandler), Tries: tt.kernel.tries(), Changed: func() {}})
		if m.Checked() || m.words() != "" {
			t.Errorf("%s: known before the first attempt", tt.name)
		}
		if missing := m.try(); missing != (tt.want != "") || !m.Checked() || m.words() != tt.want {
			t.Errorf("%s: missing %q, want %q", tt.name, m.words(), tt.want)
		}
		for _, l := range m.Missing() {
			if !m.Lacks(l.Feature) {
				t.Errorf("%s: does not lack %v", tt.name, l)
			}
		}
		if m.Lacks(0) {
			t.Errorf("%s: lacks what is no feature", tt.name)
		}
	}
	var none *Monitor
	if !none.Checked() || none.Lacks(PacketFilter) {
		t.Error("no Monitor, and something is missing")
	}
}

// TestRun: while something is missing it is tried again, each change is told once, and then no attempt follows.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel, tries, changes := refusals{RelaysIPv4: {Part: "dup", Err: syscall.ENOENT}}, 0, 0
		var mu sync.Mutex // of all three
		all := append(kernel.tries(), Try{Realtime, func() (string, error) { tries++; return "", nil }})
		for i, one := range all {
			all[i].Try = func() (string, error) {
				mu.Lock()
				defer mu.Unlock()
				return one.Try()
			}
		}
		m := New(Config{Log: slog.New(slog.DiscardHandler), Tries: all, Changed: func() {
			mu.Lock()
			defer mu.Unlock()
			changes++
		}})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		for i, step := range []struct {
			after                      time.Duration
			change                     func()
			want                       string
			wantTries, wantChangeCount int
		}{
			{0, func() {}, "relays of IPv4 dup", 1, 1},
			{59 * time.Second, func() {}, "relays of IPv4 dup", 1, 1},
			{time.Minute, func() {}, "relays of IPv4 dup", 2, 1},
			{time.Minute, func() { delete(kernel, RelaysIPv4) }, "", 3, 2},
			{time.Hour, func() { kernel[Realtime] = Lack{Err: syscall.EPERM} }, "", 3, 2},
		} {
			mu.Lock()
			step.change()
			mu.Unlock()
			time.Sleep(step.after)
			synctest.Wait()
			mu.Lock()
			if m.words() != step.want || tries != step.wantTries || changes != step.wantChangeCount {
				t.Errorf("step %d: missing %q after %d attempts and %d changes", i, m.words(), tries, changes)
			}
			mu.Unlock()
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestProblem: a problem names what is missing, the remedy, and what does not work.
func TestProblem(t *testing.T) {
	node := lb.Object{Kind: "Node", Name: "w1"}
	refused := fmt.Errorf("commit: %w", os.NewSyscallError("nf_tables", syscall.EOPNOTSUPP))
	for _, tt := range []struct {
		lack Lack
		want string
	}{
		{Lack{RelaysIPv6, "dup", refused}, "the kernel of node w1 refuses relays of IPv6 (dup: operation not supported); it needs the module nft_dup_ipv6; " +
			"until then open IPv6 connections end when their address moves here"},
		{Lack{InternalTraffic, "ct", refused}, "the kernel of node w1 refuses the rewriting of traffic from within the cluster (ct: operation not supported); " +
			"it needs a kernel with CONFIG_NF_CONNTRACK_LABELS; until then source ranges hold for pods and nodes too"},
		{Lack{PacketFilter, "", refused}, "the kernel of node w1 refuses the packet filter (operation not supported); it needs the module nf_tables " +
			"(CONFIG_NF_TABLES_INET); " +
			"until then no source ranges are enforced here, and addresses with source ranges are left to other nodes"},
		{Lack{PacketFilter, "sets of intervals", syscall.EINVAL}, "the kernel of node w1 refuses the packet filter (sets of intervals: invalid argument); it " +
			"needs a kernel of version 5.7 or newer; " +
			"until then no source ranges are enforced here, and addresses with source ranges are left to other nodes"},
		{Lack{PacketSockets, "", syscall.EPERM}, "the kernel of node w1 refuses packet sockets (operation not permitted); it needs the capability NET_RAW for " +
			"the speaker; " +
			"until then the node leaves layer 2 to others, and BGP works"},
	} {
		want := lb.Problem{Object: node, Reason: lb.KernelFeatureMissing, Message: tt.want}
		if diff := cmp.Diff(want, tt.lack.Problem(node)); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}
	for f := PacketFilter; f <= Realtime; f++ {
		if a := features[f]; a.name == "" || a.without == "" || a.capability == "" {
			t.Errorf("feature %d is not described", f)
		}
	}
}

// TestRecheck: a kernel that had everything is asked again when somebody was refused a feature, and then until it has it.
func TestRecheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refuses atomic.Bool
		var changes atomic.Int32
		tries := refusals{}.tries()
		for i := range tries {
			if tries[i].Feature == DropLogs {
				tries[i].Try = func() (string, error) {
					if refuses.Load() {
						return "", syscall.ENOENT
					}
					return "", nil
				}
			}
		}
		m := New(Config{Log: slog.New(slog.DiscardHandler), Tries: tries, Changed: func() { changes.Add(1) }})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		synctest.Wait()
		refuses.Store(true)
		time.Sleep(time.Hour)
		if m.Lacks(DropLogs) {
			t.Error("asked without a reason")
		}
		m.Recheck()
		synctest.Wait()
		if !m.Lacks(DropLogs) || changes.Load() != 2 {
			t.Errorf("lacks %q, %d changes", m.words(), changes.Load())
		}
		refuses.Store(false)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if m.Lacks(DropLogs) || changes.Load() != 3 {
			t.Errorf("lacks %q, %d changes", m.words(), changes.Load())
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	(*Monitor)(nil).Recheck()
}
