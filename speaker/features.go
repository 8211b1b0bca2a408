package main

import (
	"os"

	"github.com/holdfast-lb/holdfast/internal/divert"
	"github.com/holdfast-lb/holdfast/internal/egress"
	"github.com/holdfast-lb/holdfast/internal/filter"
	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/kernel"
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/relay"
)

// tries returns an attempt of every kernel feature that is in use.
func tries(s settings) (out []kernel.Attempt) {
	add := func(f kernel.Feature, isUsed bool, try func() error) {
		if isUsed {
			one := kernel.Attempt{Feature: f, Try: try}
			out = append(out, one)
		}
	}
	filters := func(e filter.Extras) func() error {
		return func() error {
			return filter.Try(e)
		}
	}
	relays := func(f lb.Family) func() error {
		return func() error {
			return relay.Try(f)
		}
	}
	sends := func(f lb.Family) func() error {
		return func() error {
			return egress.Try(f)
		}
	}
	_, err := os.Stat("/proc/net/if_inet6")
	hasIPv6 := err == nil // a kernel without it needs nothing for it
	isFiltering := s.node.Options.Filters()
	isSending := s.node.EgressOff() == ""

	add(kernel.PacketFilter, isFiltering, filters(filter.Extras{}))
	add(kernel.ConnectionLimits, isFiltering, filters(filter.Extras{Limits: true}))
	add(kernel.DropLogs, isFiltering, filters(filter.Extras{Log: true}))
	add(kernel.InternalTraffic, isFiltering, filters(filter.Extras{Internal: true}))
	add(kernel.PodRoutes, isFiltering, filters(filter.Extras{Routes: true}))
	add(kernel.RelaysIPv4, s.node.Relay, relays(lb.IPv4))
	add(kernel.RelaysIPv6, s.node.Relay && hasIPv6, relays(lb.IPv6))
	add(kernel.EgressIPv4, isSending, sends(lb.IPv4))
	add(kernel.EgressIPv6, isSending && hasIPv6, sends(lb.IPv6))
	add(kernel.HeadStart, isFiltering, kubeproxy.TryHeadStart)
	add(kernel.ProxyPaths, s.node.Options.Proxies(), divert.Try)
	add(kernel.PacketSockets, true, layer2.Try)
	add(kernel.RealTime, s.realtime, heartbeat.TryRealtime)
	return out
}
