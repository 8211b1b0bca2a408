package main

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
type refusals map[feature]lack

// try returns attempts of all features in order.
func (r refusals) tries() (out []attempt) {
	for f := packetFilter; f <= realTime; f++ {
		out = append(out, attempt{f, func() error { return r[f].err }})
	}
	return out
}

// words shows what is missing.
func (m *kernel) words() string {
	var out []string
	for _, l := range m.missing() {
		out = append(out, features[l.feature].name)
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
		{"no dup", refusals{relaysIPv4: {err: no}, relaysIPv6: {err: no}}, "relays of IPv4, relays of IPv6"},
		{"no labels of conntrack", refusals{internalTraffic: {err: no}}, "the rewriting of traffic from within the cluster"},
		{"no nf_tables", refusals{packetFilter: {err: no}, internalTraffic: {err: no}, connectionLimits: {err: no}, dropLogs: {err: no}}, "the packet filter"},
		{"neither packet sockets nor priority", refusals{packetSockets: {err: syscall.EPERM}, realTime: {err: syscall.EPERM}}, "packet sockets, real-time priority"},
	} {
		m := newKernel(slog.New(slog.DiscardHandler), tt.kernel.tries(), func() {})
		if m.checked() || m.words() != "" {
			t.Errorf("%s: known before the first attempt", tt.name)
		}
		if again, err := m.try(t.Context()); err != nil || (again > 0) != (tt.want != "") || !m.checked() || m.words() != tt.want {
			t.Errorf("%s: missing %q, want %q", tt.name, m.words(), tt.want)
		}
		for _, l := range m.missing() {
			if !m.lacks(l.feature) {
				t.Errorf("%s: does not lack %v", tt.name, l)
			}
		}
		if m.lacks(0) {
			t.Errorf("%s: lacks what is no feature", tt.name)
		}
	}
	var none *kernel
	if !none.checked() || none.lacks(packetFilter) {
		t.Error("no kernel, and something is missing")
	}
}

// TestKernelIsTriedAgain: while something is missing it is tried again, each change is told once, and then no attempt follows.
func TestKernelIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel, tries, changes := refusals{relaysIPv4: {err: syscall.ENOENT}}, 0, 0
		var mu sync.Mutex // of all three
		all := append(kernel.tries(), attempt{realTime, func() error { tries++; return nil }})
		for i, one := range all {
			all[i].try = func() error {
				mu.Lock()
				defer mu.Unlock()
				return one.try()
			}
		}
		m := newKernel(slog.New(slog.DiscardHandler), all, func() {
			mu.Lock()
			defer mu.Unlock()
			changes++
		})
		background(t, m.loop.Run)
		for i, step := range []struct {
			after                      time.Duration
			change                     func()
			want                       string
			wantTries, wantChangeCount int
		}{
			{0, func() {}, "relays of IPv4", 1, 1},
			{59 * time.Second, func() {}, "relays of IPv4", 1, 1},
			{time.Minute, func() {}, "relays of IPv4", 2, 1},
			{time.Minute, func() { delete(kernel, relaysIPv4) }, "", 3, 2},
			{time.Hour, func() { kernel[realTime] = lack{err: syscall.EPERM} }, "", 3, 2},
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
		lack lack
		want string
	}{
		{lack{relaysIPv6, refused}, "the kernel of node w1 refuses relays of IPv6 (operation not supported); " +
			"it needs Linux 5.7 or newer with nf_tables, nft_ct and nft_dup_ipv6; " +
			"until then open IPv6 connections end when their address moves here"},
		{lack{internalTraffic, refused}, "the kernel of node w1 refuses the rewriting of traffic from within the cluster (operation not supported); " +
			"it needs Linux 5.7 or newer with CONFIG_NF_CONNTRACK_LABELS; until then source ranges hold for pods and nodes too"},
		{lack{packetFilter, refused}, "the kernel of node w1 refuses the packet filter (operation not supported); it needs Linux 5.7 or newer with nf_tables " +
			"(CONFIG_NF_TABLES_INET), nft_ct, nft_limit, nft_reject_inet, nft_chain_nat, nft_nat and nft_redir; " +
			"until then no source ranges are enforced here, and addresses with source ranges are left to other nodes"},
		{lack{packetSockets, syscall.EPERM}, "the kernel of node w1 refuses packet sockets (operation not permitted); it needs the capability NET_RAW for " +
			"the speaker; " +
			"until then the node leaves layer 2 to others, and BGP works"},
	} {
		want := lb.Problem{Object: node, Reason: lb.KernelFeatureMissing, Message: tt.want}
		if diff := cmp.Diff(want, tt.lack.problem(node)); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}
	for f := packetFilter; f <= realTime; f++ {
		if a := features[f]; a.name == "" || a.without == "" || a.capability == "" || a.modules == "" {
			t.Errorf("feature %d is not described", f)
		}
	}
}

// TestKernelRecheck: a kernel that had everything is asked again when a sink was refused a feature, and then until it has it.
func TestKernelRecheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refuses atomic.Bool
		var changes atomic.Int32
		tries := refusals{}.tries()
		for i := range tries {
			if tries[i].feature == dropLogs {
				tries[i].try = func() error {
					if refuses.Load() {
						return syscall.ENOENT
					}
					return nil
				}
			}
		}
		m := newKernel(slog.New(slog.DiscardHandler), tries, func() { changes.Add(1) })
		background(t, m.loop.Run)
		synctest.Wait()
		refuses.Store(true)
		time.Sleep(time.Hour)
		if m.lacks(dropLogs) {
			t.Error("asked without a reason")
		}
		m.recheck()
		synctest.Wait()
		if !m.lacks(dropLogs) || changes.Load() != 2 {
			t.Errorf("lacks %q, %d changes", m.words(), changes.Load())
		}
		refuses.Store(false)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if m.lacks(dropLogs) || changes.Load() != 3 {
			t.Errorf("lacks %q, %d changes", m.words(), changes.Load())
		}
	})
	(*kernel)(nil).recheck()
}
