package egress

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// State is the current state of a Translator.
type State struct {
	Families []FamilyState
	// Exhausted is the number of slices of this node without a free port for some destination.
	Exhausted int
}

// FamilyState is the state of one table.
type FamilyState struct {
	lb.Family
	// Failure is the error of the last attempt to change the table; empty if it succeeded.
	Failure string `json:",omitempty"`
	// Open counts the pods that may open connections from an address. Closed counts those that may not by the plan, and
	// Faulty those in Faults.
	Open, Closed, Faulty int
	// Passed and Rejected count packets since the table was made.
	Passed, Rejected uint64
}

// State returns the current state. It reads the kernel's counters.
func (t *Translator) State() (s State) {
	for _, table := range t.tables {
		f := FamilyState{Family: table.family.name}
		if err := table.Failure(); err != nil {
			f.Failure = err.Error()
		}

		if table.Actual() != nil {
			f.Passed, _ = table.ChainPackets(passChain)
			f.Rejected, _ = table.ChainPackets(refuseChain)
		}
		s.Families = append(s.Families, f)
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	s.Exhausted = len(t.exhausted)
	if t.model == nil {
		return s
	}

	for i, table := range t.tables {
		s.Families[i].count(t.model, table.family)
	}

	return s
}

// count counts the sources of a family.
func (s *FamilyState) count(m *model, f *family) {
	for pod, source := range m.sources {
		switch {
		case !f.Has(pod):
		case source.hasRight():
			s.Open++
		case source.Closed != "":
			s.Closed++
		case m.faults[pod] != "":
			s.Faulty++
		}
	}
}

// repairs returns the number of repairs of all tables.
func (t *Translator) repairs() uint64 {
	n := t.bridges.Repairs() + t.routing.repairs.Load()
	for _, table := range t.tables {
		n += table.Repairs()
	}
	return n
}

var repairsDesc = prometheus.NewDesc(
	"holdfast_repairs_total",
	"Repairs of drift, by kind.",
	nil,
	prometheus.Labels{"kind": "egress"},
)

var exhaustedDesc = prometheus.NewDesc(
	"holdfast_egress_exhausted_slices",
	"Egress addresses whose ports on this node are used up for some destination, so that new connections to it fail.",
	nil,
	nil,
)

var sourcesDesc = prometheus.NewDesc(
	"holdfast_egress_sources",
	"Pod addresses of this node with egress, by state: open, closed, or faulty if their link or route is missing.",
	[]string{"family", "state"},
	nil,
)

// Describe implements prometheus.Collector.
func (t *Translator) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(t, ch) }

// Collect implements prometheus.Collector. It reads the kernel's counters.
func (t *Translator) Collect(ch chan<- prometheus.Metric) {
	s := t.State()
	ch <- prometheus.MustNewConstMetric(repairsDesc, prometheus.CounterValue, float64(t.repairs()))
	ch <- prometheus.MustNewConstMetric(exhaustedDesc, prometheus.GaugeValue, float64(s.Exhausted))
	for _, f := range s.Families {
		metric := func(name, help string, kind prometheus.ValueType, value float64) {
			desc := prometheus.NewDesc("holdfast_egress_"+name, help, []string{"family"}, nil)
			ch <- prometheus.MustNewConstMetric(desc, kind, value, string(f.Family))
		}

		for state, n := range map[string]int{"open": f.Open, "closed": f.Closed, "faulty": f.Faulty} {
			ch <- prometheus.MustNewConstMetric(sourcesDesc, prometheus.GaugeValue, float64(n), string(f.Family), state)
		}

		metric(
			"passed_packets_total",
			"Answers passed on to the node of their port slice since the creation of the table.",
			prometheus.CounterValue,
			float64(f.Passed),
		)

		metric(
			"rejected_packets_total",
			"Packets of pods that were refused because the pod may not send them, since the creation of the table.",
			prometheus.CounterValue,
			float64(f.Rejected),
		)

		metric(
			"failed",
			"1 while the kernel refuses the table, so that connections of pods leave with the address of the node.",
			prometheus.GaugeValue,
			map[bool]float64{true: 1}[f.Failure != ""],
		)
	}
}
