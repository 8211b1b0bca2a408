package relay

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// State is the current state of a Relayer.
type State struct {
	Families []FamilyState
	// Relays that are in force.
	Relays []lb.Relay
}

// FamilyState is the state of one table.
type FamilyState struct {
	lb.Family
	// Failure is the error of the last attempt to change the table; empty if it succeeded.
	Failure string `json:",omitempty"`
	// Relayed counts the relayed addresses, without those whose relay has ended.
	Relayed int
	// Packets counts the relayed packets since the table was made.
	Packets uint64
}

// State returns the current state. It reads the kernel's counters.
func (r *Relayer) State() (s State) {
	for _, t := range r.tables {
		f := FamilyState{Family: t.family.name}
		if err := t.Failure(); err != nil {
			f.Failure = err.Error()
		}

		img := t.Actual()
		if img != nil {
			for _, relay := range img.desired.Relays.All() {
				if img.isActive(relay) {
					s.Relays = append(s.Relays, relay)
					f.Relayed++
				}
			}

			f.Packets, _ = t.Packets()
		}

		s.Families = append(s.Families, f)
	}

	return s
}

// repairs returns the number of repairs of both tables.
func (r *Relayer) repairs() (n uint64) {
	for _, t := range r.tables {
		n += t.Repairs()
	}
	return n
}

var repairsDesc = prometheus.NewDesc(
	"holdfast_repairs_total",
	"Repairs of drift, by kind.",
	nil,
	prometheus.Labels{"kind": "relay"},
)

// Describe implements prometheus.Collector.
func (r *Relayer) Describe(ch chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(r, ch)
}

// Collect implements prometheus.Collector. It reads the kernel's counters.
func (r *Relayer) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(repairsDesc, prometheus.CounterValue, float64(r.repairs()))
	for _, f := range r.State().Families {
		metric := func(name, help string, kind prometheus.ValueType, value float64) {
			desc := prometheus.NewDesc("holdfast_l2_"+name, help, []string{"family"}, nil)
			ch <- prometheus.MustNewConstMetric(desc, kind, value, string(f.Family))
		}

		metric(
			"relayed_addresses",
			"Addresses that this node took over and whose older connections it relays to the former owner.",
			prometheus.GaugeValue,
			float64(f.Relayed),
		)

		metric(
			"relayed_packets_total",
			"Packets relayed to former owners since the creation of the table.",
			prometheus.CounterValue,
			float64(f.Packets),
		)

		metric(
			"relay_failed",
			"1 while the kernel refuses the relays, so that connections end when their address moves.",
			prometheus.GaugeValue,
			map[bool]float64{true: 1}[f.Failure != ""],
		)
	}
}
