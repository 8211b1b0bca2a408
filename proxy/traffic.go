package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/haproxy"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// traffic reads the metrics of Services from the running workers when they are asked for.
type traffic struct{ agent *agent }

func describe(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("holdfast_proxy_"+name, help, []string{"namespace", "service", "port"}, nil)
}

// trafficMetric is a metric of each port, the sum of fields that HAProxy shows of a side.
type trafficMetric struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	side   string
	fields []string
}

var trafficMetrics = []trafficMetric{
	{
		describe("connections_total", "Connections of clients to the running worker."),
		prometheus.CounterValue,
		"FRONTEND",
		[]string{"stot"},
	},
	{describe("received_bytes_total", "Bytes from clients."), prometheus.CounterValue, "FRONTEND", []string{"bin"}},
	{describe("sent_bytes_total", "Bytes to clients."), prometheus.CounterValue, "FRONTEND", []string{"bout"}},
	{
		describe("refused_total", "Connections refused by source or by number."),
		prometheus.CounterValue,
		"FRONTEND",
		[]string{"dcon", "dses", "dreq"},
	},
	{
		describe("endpoint_errors_total", "Failed connections to endpoints, and failed answers."),
		prometheus.CounterValue,
		"BACKEND",
		[]string{"econ", "eresp"},
	},
	{describe("endpoints", "Endpoints that get connections."), prometheus.GaugeValue, "BACKEND", []string{"act"}},
}

// Describe implements prometheus.Collector.
func (t traffic) Describe(to chan<- *prometheus.Desc) {
	for _, m := range trafficMetrics {
		to <- m.desc
	}
}

// Collect implements prometheus.Collector. A namespace whose worker does not answer has no values.
func (t traffic) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	t.agent.mu.Lock()
	tenants := slices.Collect(maps.Values(t.agent.tenants))
	t.agent.mu.Unlock()
	var group sync.WaitGroup
	for _, o := range tenants {
		group.Go(func() {
			if text, err := o.talk(ctx, "show stat -1 3 -1"); err == nil {
				readTraffic(text, to)
			}
		})
	}
	group.Wait()
}

func readTraffic(text string, to chan<- prometheus.Metric) {
	rows, err := csv.NewReader(strings.NewReader(strings.TrimPrefix(strings.TrimSpace(text), "# "))).ReadAll()
	if err != nil || len(rows) == 0 {
		return
	}
	column := map[string]int{}
	for i, name := range rows[0] {
		column[name] = i
	}
	for _, row := range rows[1:] {
		labels := haproxy.ParseBackend(row[column["pxname"]])
		for _, m := range trafficMetrics {
			if labels == nil || row[column["svname"]] != m.side {
				continue
			}
			sum := 0.0
			for _, f := range m.fields {
				if i, shown := column[f]; shown {
					v, _ := strconv.ParseFloat(row[i], 64) // an empty field is 0
					sum += v
				}
			}
			to <- prometheus.MustNewConstMetric(m.desc, m.kind, sum, labels...)
		}
	}
}

// engineMetrics is where the engine shows its own, to its pod and its node alone.
const engineMetrics = "http://127.0.0.1:7950/metrics"

// gatherEngine returns the engine's metrics; none while it does not answer.
func gatherEngine() ([]*dto.MetricFamily, error) {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(engineMetrics)
	if err != nil {
		return nil, nil // it starts again
	}
	defer answer.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("read the engine's metrics: %w", err)
	}
	return slices.Collect(maps.Values(families)), nil
}
