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

// traffic is a collector that reads the metrics of Services from the running workers at each scrape.
type traffic struct{ agent *agent }

// describe returns the description of a metric of each port.
func describe(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("holdfast_proxy_"+name, help, []string{"namespace", "service", "port"}, nil)
}

// trafficMetric is a metric of each port: the sum of some fields of HAProxy's statistics.
type trafficMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	// side is FRONTEND or BACKEND.
	side   string
	fields []string
}

// trafficMetrics are the metrics of each port.
var trafficMetrics = []trafficMetric{
	{
		desc:   describe("connections_total", "Connections of clients to the running worker."),
		kind:   prometheus.CounterValue,
		side:   "FRONTEND",
		fields: []string{"stot"},
	},
	{
		desc:   describe("received_bytes_total", "Bytes from clients."),
		kind:   prometheus.CounterValue,
		side:   "FRONTEND",
		fields: []string{"bin"},
	},
	{
		desc:   describe("sent_bytes_total", "Bytes to clients."),
		kind:   prometheus.CounterValue,
		side:   "FRONTEND",
		fields: []string{"bout"},
	},
	{
		desc:   describe("refused_total", "Connections refused by source or by number."),
		kind:   prometheus.CounterValue,
		side:   "FRONTEND",
		fields: []string{"dcon", "dses", "dreq"},
	},
	{
		desc:   describe("endpoint_errors_total", "Failed connections to endpoints, and failed answers."),
		kind:   prometheus.CounterValue,
		side:   "BACKEND",
		fields: []string{"econ", "eresp"},
	},
	{
		desc:   describe("endpoints", "Endpoints that get connections."),
		kind:   prometheus.GaugeValue,
		side:   "BACKEND",
		fields: []string{"act"},
	},
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
			text, err := o.talk(ctx, "show stat -1 3 -1")
			if err == nil {
				readTraffic(text, to)
			}
		})
	}

	group.Wait()
}

// readTraffic sends the metrics in the statistics of a worker.
func readTraffic(text string, to chan<- prometheus.Metric) {
	table := strings.TrimPrefix(strings.TrimSpace(text), "# ")
	rows, err := csv.NewReader(strings.NewReader(table)).ReadAll()
	if err != nil || len(rows) == 0 {
		return
	}

	column := map[string]int{}
	for i, name := range rows[0] {
		column[name] = i
	}

	for _, row := range rows[1:] {
		labels := haproxy.ParseBackend(row[column["pxname"]])
		if labels == nil {
			continue
		}

		for _, m := range trafficMetrics {
			if row[column["svname"]] != m.side {
				continue
			}

			sum := 0.0
			for _, f := range m.fields {
				i, hasColumn := column[f]
				if hasColumn {
					v, _ := strconv.ParseFloat(row[i], 64) // an empty field is 0
					sum += v
				}
			}

			to <- prometheus.MustNewConstMetric(m.desc, m.kind, sum, labels...)
		}
	}
}

// engineMetrics is the address of the engine's metrics. Only its pod and its node reach it.
const engineMetrics = "http://127.0.0.1:7950/metrics"

// gatherEngine returns the engine's metrics; none if it does not answer.
func gatherEngine() ([]*dto.MetricFamily, error) {
	client := http.Client{
		Timeout:   time.Second,
		Transport: &http.Transport{DisableKeepAlives: true},
	}
	answer, err := client.Get(engineMetrics)
	if err != nil {
		return nil, nil // the engine is restarting
	}

	defer answer.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("read the engine's metrics: %w", err)
	}

	return slices.Collect(maps.Values(families)), nil
}
