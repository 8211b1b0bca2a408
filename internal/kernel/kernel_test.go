package kernel

import (
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
func (r refusals) tries() (out []Attempt) {
	for f := PacketFilter; f <= RealTime; f++ {
		out = append(out, Attempt{f, func() error { return r[f].Err }})
	}
	return out
}

// words shows what is missing.
func (m *Monitor) words() string {
	var out []string
	for _, l := range m.Missing() {
		out = append(out, features[l.Feature].name)
	}
	return strings.Join(out, ", ")
}

func TestKernelLacks(t *testing.T) {
	no := syscall.EOPNOTSUPP
	for _, tt := range []struct {
		name   string
		kernel refusals
		want   string
	}{
		{"everything is there", refusals{}, ""},
		{"no dup", refusals{RelaysIPv4: {Err: no}, RelaysIPv6: {Err: no}}, "relays of IPv4, relays of IPv6"},
		{"no labels of conntrack", refusals{InternalTraffic: {Err: no}}, "the rewriting of traffic from within the cluster"},
		{"no nf_tables", refusals{PacketFilter: {Err: no}, InternalTraffic: {Err: no}, ConnectionLimits: {Err: no},
			DropLogs: {Err: no}}, "the packet filter"},
		{"neither packet sockets nor priority", refusals{PacketSockets: {Err: syscall.EPERM}, RealTime: {Err: syscall.EPERM}},
			"packet sockets, real-time priority"},
	} {
		m := New(slog.New(slog.DiscardHandler), tt.kernel.tries(), func() {})
		if m.Checked() || m.words() != "" {
			t.Errorf("%s: known before the first attempt", tt.name)
		}
		if again, err := m.try(t.Context()); err != nil || (again > 0) != (tt.want != "") || !m.Checked() ||
			m.words() != tt.want {
			t.Errorf("%s: missing %q, want %q", tt.name, m.words(), tt.want)
		}
		for _, l := range m.Missing() {
			if !m.Lacks(l.Feature) {
				t.Errorf("%s: does not Lack %v", tt.name, l)
			}
		}
		if m.Lacks(0) {
			t.Errorf("%s: lacks what is no feature", tt.name)
		}
	}
	var none *Monitor
	if !none.Checked() || none.Lacks(PacketFilter) {
		t.Error("no kernel, and something is missing")
	}
}

// TestKernelIsTriedAgain: while something is missing it is tried again, each change is told once, and then no attempt
// follows.
func TestKernelIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel, tries, changes := refusals{RelaysIPv4: {Err: syscall.ENOENT}}, 0, 0
		var mu sync.Mutex // of all three
		all := append(kernel.tries(), Attempt{RealTime, func() error { tries++; return nil }})
		for i, one := range all {
			all[i].Try = func() error {
				mu.Lock()
				defer mu.Unlock()
				return one.Try()
			}
		}
		m := New(slog.New(slog.DiscardHandler), all, func() {
			mu.Lock()
			defer mu.Unlock()
			changes++
		})
		go func() { _ = m.Run(t.Context()) }()
		for i, step := range []struct {
			after                      time.Duration
			change                     func()
			want                       string
			wantTries, wantChangeCount int
		}{
			{0, func() {}, "relays of IPv4", 1, 1},
			{59 * time.Second, func() {}, "relays of IPv4", 1, 1},
			{time.Minute, func() {}, "relays of IPv4", 2, 1},
			{time.Minute, func() { delete(kernel, RelaysIPv4) }, "", 3, 2},
			{time.Hour, func() { kernel[RealTime] = Lack{Err: syscall.EPERM} }, "", 3, 2},
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
	})
}

// TestKernelProblem: a problem names what is missing, the remedy, and what does not work.
func TestKernelProblem(t *testing.T) {
	node := lb.Object{Kind: "Node", Name: "w1"}
	refused := fmt.Errorf("commit: %w", os.NewSyscallError("nf_tables", syscall.EOPNOTSUPP))
	for _, tt := range []struct {
		lack Lack
		want string
	}{
		{Lack{RelaysIPv6, refused}, "the kernel of node w1 refuses relays of IPv6 (operation not supported); " +
			"it needs Linux 5.7 or newer with nf_tables, nft_ct and nft_dup_ipv6; " +
			"until then open IPv6 connections end when their address moves here"},
		{Lack{
			InternalTraffic, refused,
		}, "the kernel of node w1 refuses the rewriting of traffic from within the cluster (operation not supported); " +
			"it needs Linux 5.7 or newer with CONFIG_NF_CONNTRACK_LABELS; until then source ranges hold for pods and nodes too"},
		{Lack{PacketFilter, refused}, "the kernel of node w1 refuses the packet filter (operation not supported); it " +
			"needs Linux 5.7 or newer with nf_tables " +
			"(CONFIG_NF_TABLES_INET), nft_ct, nft_limit, nft_reject_inet, nft_chain_nat, nft_nat and nft_redir; " +
			"until then no source ranges are enforced here, and addresses with source ranges are left to other nodes"},
		{Lack{PacketSockets, syscall.EPERM},
			"the kernel of node w1 refuses packet sockets (operation not permitted); it needs the capability NET_RAW for " +
				"the speaker; " +
				"until then the node leaves layer 2 to others, and BGP works"},
	} {
		want := lb.Problem{Object: node, Reason: lb.KernelFeatureMissing, Message: tt.want}
		if diff := cmp.Diff(want, tt.lack.Problem(node)); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}
	for f := PacketFilter; f <= RealTime; f++ {
		if a := features[f]; a.name == "" || a.without == "" || a.capability == "" || a.modules == "" {
			t.Errorf("feature %d is not described", f)
		}
	}
}

// TestKernelRecheck: a kernel that had everything is asked again when a sink was refused a feature, and then until it
// has it.
func TestKernelRecheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refuses atomic.Bool
		var changes atomic.Int32
		tries := refusals{}.tries()
		for i := range tries {
			if tries[i].Feature == DropLogs {
				tries[i].Try = func() error {
					if refuses.Load() {
						return syscall.ENOENT
					}
					return nil
				}
			}
		}
		m := New(slog.New(slog.DiscardHandler), tries, func() { changes.Add(1) })
		go func() { _ = m.Run(t.Context()) }()
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
	})
	(*Monitor)(nil).Recheck()
}
