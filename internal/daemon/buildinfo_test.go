package daemon

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/child"
)

func TestBuildInfo(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(BuildInfo())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 1 || families[0].GetName() != "holdfast_build_info" || families[0].GetMetric()[0].GetGauge().GetValue() != 1 ||
		len(families[0].GetMetric()[0].GetLabel()) != len(child.BuildLabels()) {
		t.Errorf("%v", families)
	}
}
