package build

import (
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

func TestCollector(t *testing.T) {
	version, commit, date = "1.2.3", "8fd0094", "2026-11-23T00:00:00Z"
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(Collector()); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 1 || families[0].GetName() != "holdfast_build_info" || families[0].GetMetric()[0].GetGauge().GetValue() != 1 {
		t.Fatalf("%v", families)
	}
	labels := map[string]string{}
	for _, l := range families[0].GetMetric()[0].GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	want := map[string]string{"version": "1.2.3", "commit": "8fd0094", "date": "2026-11-23T00:00:00Z", "goversion": runtime.Version()}
	if diff := cmp.Diff(want, labels); diff != "" {
		t.Errorf("labels -want +got\n%s", diff)
	}
	if got := String("speaker"); !strings.HasPrefix(got, "speaker 1.2.3, commit 8fd0094 of 2026-11-23T00:00:00Z, ") {
		t.Error(got)
	}
}
