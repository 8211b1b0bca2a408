package main

import (
	"log/slog"
	"net/netip"
	"os"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/filter"
	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/kernel"
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/relay"
)

// newKernel returns what the kernel of this node lacks of what the settings ask for. It kicks when it knows, and when that
// changes.
func newKernel(log *slog.Logger, s settings, kick func()) *kernel.Monitor {
	return kernel.New(kernel.Config{Log: log, Tries: tries(s), Changed: kick})
}

// tries returns an attempt of every feature in use.
func tries(s settings) []kernel.Try {
	with := func(f kernel.Feature, e filter.Extras) kernel.Try {
		return kernel.Try{Feature: f, Try: func() (string, error) { return filter.Try(e) }}
	}
	relays := func(f kernel.Feature, of lb.Family) kernel.Try {
		return kernel.Try{Feature: f, Try: func() (string, error) { return relay.Try(of) }}
	}
	whole := func(f kernel.Feature, try func() error) kernel.Try {
		return kernel.Try{Feature: f, Try: func() (string, error) { return "", try() }}
	}
	var out []kernel.Try
	if !s.Options.NoFilter {
		out = append(out, with(kernel.PacketFilter, filter.Extras{}), with(kernel.ConnectionLimits, filter.Extras{Limits: true}),
			with(kernel.DropLogs, filter.Extras{Log: true}), with(kernel.InternalTraffic, filter.Extras{Internal: true}))
	}
	if s.relay {
		out = append(out, relays(kernel.RelaysIPv4, lb.IPv4))
	}
	if s.relay && hasIPv6() {
		out = append(out, relays(kernel.RelaysIPv6, lb.IPv6))
	}
	out = append(out, kernel.Try{Feature: kernel.HeadStart, Try: kubeproxy.TryHeadStart}, whole(kernel.PacketSockets, layer2.Try))
	if s.realtime {
		out = append(out, whole(kernel.Realtime, heartbeat.TryRealtime))
	}
	return out
}

// hasIPv6 reports whether the kernel knows IPv6 at all: a node without it needs no relays for it.
func hasIPv6() bool {
	_, err := os.Stat("/proc/net/if_inet6")
	return err == nil
}

// kernelProblems returns what the kernel of the node lacks.
func (w *syncer) kernelProblems() []lb.Problem {
	var out []lb.Problem
	for _, l := range w.kernel.Missing() {
		out = append(out, l.Problem(lb.Object{Kind: config.KindNode, Name: w.node}))
	}
	return out
}

// possible returns the filter without what the kernel lacks, since it would refuse the whole of it.
func possible(d filter.Desired, k *kernel.Monitor) filter.Desired {
	noLimits, noInternal := k.Lacks(kernel.ConnectionLimits), k.Lacks(kernel.InternalTraffic)
	d.NoLog = k.Lacks(kernel.DropLogs)
	if !noLimits && !noInternal {
		return d
	}
	d.Frontends = slices.Clone(d.Frontends)
	for i := range d.Frontends {
		f := &d.Frontends[i]
		if noLimits {
			f.ConnectionLimit = 0
		}
		if noInternal {
			f.ClusterIP = netip.Addr{}
		}
	}
	return d
}
