package filter

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Desired is what the kernel is to enforce: the filter, and what the node knows of itself.
type Desired struct {
	lb.Filter
	// Internal sends traffic from within the cluster to the ClusterIP of its door, past every range. Off,
	// such traffic is a source like any other.
	Internal bool
	// PodCIDRs are the sources of this node's own pods.
	PodCIDRs []netip.Prefix
	// Uplinks are the names of the links that lead out of the node; a pod's address that arrives there is
	// forged.
	Uplinks []string
	// Addresses are the node's own. The first of a family answers echo requests; without one the address of
	// the link does that they arrive on.
	Addresses []netip.Addr
}

// Config is what a Table needs.
type Config struct {
	Log *slog.Logger
}

// Table is the nftables table of Holdfast on this node.
type Table struct {
	log *slog.Logger
}

// New returns a Table that has not touched the kernel yet.
func New(c Config) *Table { return &Table{log: c.Log} }

// Set makes the kernel enforce exactly this. When it returns nil, it does.
func (t *Table) Set(desired Desired) error { panic("not made yet") }

// Run heals the table until the context ends. The table stays.
func (t *Table) Run(ctx context.Context) error { panic("not made yet") }

// Enforced reports whether the kernel enforces what was set last, and since when that is so or not so.
func (t *Table) Enforced() (ok bool, since time.Time) { panic("not made yet") }

// Remove deletes the table and nothing else.
func (t *Table) Remove() error { panic("not made yet") }

// State is what /debug/state shows.
func (t *Table) State() any { panic("not made yet") }

// Describe implements prometheus.Collector.
func (t *Table) Describe(ch chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (t *Table) Collect(ch chan<- prometheus.Metric) {}
