// Package kubeproxy observes kube-proxy on this node, and serves in its place until it is up to date.
//
//	Boot       observes whether kube-proxy has served since the node started, and whether its rules exist
//	Endpoints  finds the Services whose endpoints on this node kube-proxy does not serve yet
//	HeadStart  translates connections to new addresses until kube-proxy does
//	Sweeper    deletes the conntrack entries of attempts to reach endpoints on dead nodes, and of ended
//	           connections to addresses that move here
//
// Each has a Run, and those with a desired state have a Set:
//
//	boot := kubeproxy.New(kubeproxy.Config{Log: log, Livez: "127.0.0.1:10256", Kick: kick})
//	go boot.Run(ctx)
//	if boot.Served() && len(boot.RulesGone()) == 0 { … } // the node can forward
//
// The package takes no decisions. It changes no nftables table but its own two.
package kubeproxy

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// interval is the time between two checks before kube-proxy has served. A check takes a millisecond.
	interval = 250 * time.Millisecond
	// rulesInterval is the time between two checks afterwards.
	rulesInterval = 500 * time.Millisecond
)

// Config configures a Boot.
type Config struct {
	Log *slog.Logger
	// Livez is the host and port of kube-proxy's health endpoint. It is empty on a node without kube-proxy: then the
	// Boot does not wait, and deletes the record that one has served.
	Livez string
	// Kick is called when kube-proxy has served, and when its rules are gone or back.
	Kick func()
}

// Boot observes whether kube-proxy has served since the node started. Until then the node must not announce any
// address, because it cannot forward the traffic. Afterwards kube-proxy's rules stay in the kernel while kube-proxy
// restarts.
//
// Boot also detects when the rules are gone, as after "nft flush ruleset": kube-proxy may take up to an hour to make
// them again.
type Boot struct {
	config Config
	// find returns the strongest sign of kube-proxy, and rules the families that have its rules. Tests replace both.
	find  func(context.Context) sign
	rules func() ([]lb.Family, error)
	// checked is closed after the first check.
	checked chan struct{}
	// last is the sign of the last check.
	last atomic.Int32
	// served reports whether kube-proxy has served.
	served atomic.Bool
	// gone are the families whose rules are gone; nil for none.
	gone atomic.Pointer[[]lb.Family]
}

// New returns a Boot that has not checked yet.
func New(c Config) *Boot {
	b := &Boot{config: c, checked: make(chan struct{}), rules: familiesWithRules}
	b.find = func(ctx context.Context) sign { return findSign(ctx, c.Livez) }
	if c.Livez == "" {
		b.served.Store(true)
		close(b.checked)
	}

	return b
}

// Served reports whether kube-proxy has served since the node started, according to the signs.
func (b *Boot) Served() bool { return b.served.Load() }

// RulesGone returns the families whose rules were in the kernel and are gone.
func (b *Boot) RulesGone() []lb.Family {
	gone := b.gone.Load()
	if gone == nil {
		return nil
	}
	return *gone
}

// Looked returns a channel that is closed after the first check. Before that, Served has no meaning.
func (b *Boot) Looked() <-chan struct{} { return b.checked }

// Waiting returns a clause about the last sign of kube-proxy, for logs and conditions.
func (b *Boot) Waiting() string {
	if b.config.Livez == "" {
		return "it is not waited for"
	}

	gone := b.RulesGone()
	if len(gone) > 0 {
		return fmt.Sprintf("its rules are gone from the kernel: %s", lb.SomeOf(gone))
	}

	return sign(b.last.Load()).describe(b.config.Livez)
}

// Run checks until ctx ends.
func (b *Boot) Run(ctx context.Context) error {
	if b.config.Livez == "" {
		if marker().Exists() {
			return Forget()
		}

		return nil
	}

	var seen seenRules
	b.await(ctx, &seen)
	if b.Served() {
		b.watch(ctx, &seen)
	}

	return nil
}

// await checks until kube-proxy has served or ctx ends. Then it records the rules that exist.
func (b *Boot) await(ctx context.Context, rules *seenRules) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	start := time.Now()
	var steady steadySign
	for isFirst := true; ; isFirst = false {
		found := b.find(ctx)
		if ctx.Err() != nil {
			return
		}

		before := sign(b.last.Swap(int32(found)))
		suffices := steady.observe(time.Now(), found)
		if suffices {
			b.observe(rules) // before Served is true: from then on, missing rules count
			b.pass(found, time.Since(start))
		} else if isFirst || found != before {
			b.config.Log.Info("waiting for kube-proxy; this node announces nothing until kube-proxy has served",
				"found", b.Waiting())
		}

		if isFirst {
			close(b.checked)
		}
		if suffices {
			b.config.Kick()
			return
		}

		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// watch checks until ctx ends whether the rules that were seen still exist.
func (b *Boot) watch(ctx context.Context, seen *seenRules) {
	tick := time.NewTicker(rulesInterval)
	defer tick.Stop()
	for {
		b.observe(seen)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// observe reads the rules, and records the families whose rules are gone.
func (b *Boot) observe(seen *seenRules) {
	have, err := b.rules()
	if err != nil {
		return // the next check may succeed
	}
	b.setGone(seen.observe(time.Now(), have, families()))
}

// setGone records the families whose rules are gone. It deletes the record that kube-proxy has served, because the next
// speaker must not rely on rules that are gone.
func (b *Boot) setGone(gone []lb.Family) {
	before := b.RulesGone()
	if slices.Equal(before, gone) {
		return
	}

	b.gone.Store(&gone)
	b.config.Kick()

	record := Forget
	if len(gone) > 0 {
		b.config.Log.Error("the rules of kube-proxy are gone; this node leaves its addresses to nodes that have them",
			"families", gone)
	} else {
		b.config.Log.Info("the rules of kube-proxy are back", "families", before)
		record = marker().CreateEmpty
	}

	if err := record(); err != nil {
		b.config.Log.Warn("the record that kube-proxy has served is wrong for the next speaker on this node",
			"error", err)
	}
}

// pass ends the wait by a sign, and records for the next speaker that kube-proxy has served.
func (b *Boot) pass(found sign, after time.Duration) {
	b.served.Store(true)
	b.config.Log.Info("kube-proxy has served", "found", b.Waiting(), "after", after.Round(time.Millisecond))
	if found == servedBefore {
		return
	}

	if err := marker().CreateEmpty(); err != nil {
		b.config.Log.Warn("the next speaker on this node will wait for kube-proxy again", "error", err)
	}
}
