package daemon

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// TestNamed: as many series as there may be name Services, the first ones by name, and the others are counted.
func TestNamed(t *testing.T) {
	rows := map[[4]string]bool{}
	for i := range maxNamed + 3 {
		family := "IPv4"
		if i == maxNamed {
			family = "IPv6"
		}
		rows[[4]string{"ns", fmt.Sprintf("web%05d", i), family, "x"}] = true
	}
	ch := make(chan prometheus.Metric, len(rows))
	Named(ch, prometheus.NewDesc("holdfast_test", "Test.", []string{"namespace", "service", "family", "reason"}, nil), rows)
	close(ch)
	named, rest := map[string]bool{}, map[string]float64{}
	for m := range ch {
		var out dto.Metric
		if err := m.Write(&out); err != nil {
			t.Fatal(err)
		}
		labels := map[string]string{}
		for _, l := range out.Label {
			labels[l.GetName()] = l.GetValue()
		}
		if labels["service"] == "" && labels["namespace"] == "" {
			rest[labels["family"]+" "+labels["reason"]] = out.Gauge.GetValue()
		} else if named[labels["service"]] = true; out.Gauge.GetValue() != 1 {
			t.Errorf("%v: %v", labels, out.Gauge.GetValue())
		}
	}
	if len(named) != maxNamed || !named["web00000"] || !named[fmt.Sprintf("web%05d", maxNamed-1)] {
		t.Errorf("%d series have names, want the first %d", len(named), maxNamed)
	}
	if len(rest) != 2 || rest["IPv4 x"] != 2 || rest["IPv6 x"] != 1 {
		t.Errorf("without a name: %v", rest)
	}
}
