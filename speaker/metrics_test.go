package main

import (
	"log/slog"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/bfd"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/filter"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/prometheus/client_golang/prometheus"
)

// TestMetricsRegister: all parts of the speaker count their repairs under one name, which a registry accepts only if
// they agree on everything but the kind.
func TestMetricsRegister(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	registry := prometheus.NewPedanticRegistry()
	w := &syncer{membership: &membership{}, hang: &hang{}}
	for _, c := range []prometheus.Collector{
		w, w.heartbeatProcess(),
		layer2.New(layer2.Config{Log: log, Links: func() []lb.Interface { return nil }}),
		bgp.New(bgp.Config{Log: log, Command: testEngine, Kick: func() {}}),
		bfd.New(bfd.Config{Log: log, Changed: func() {}}),
		filter.New(filter.Config{Log: log}),
	} {
		if err := registry.Register(c); err != nil {
			t.Error(err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Error(err)
	}
	for _, f := range families {
		if f.GetName() == "holdfast_repairs_total" && len(f.GetMetric()) < 4 {
			t.Errorf("repairs of %d kinds, want those of every part", len(f.GetMetric()))
		}
	}
}
