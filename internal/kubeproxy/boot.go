// Package kubeproxy makes up for what kube-proxy does later than Holdfast.
//
//	Boot       whether kube-proxy has served since this node started
//	Endpoints  for which Services kube-proxy does not serve the endpoints on this node yet
//	HeadStart  leads connections to the endpoints of new addresses until kube-proxy does
//	Sweeper    forgets connection attempts that kube-proxy sent to endpoints on dead nodes, and ended connections to addresses
//	           that move here
//
// The package takes no decisions, and changes no tables but its own.
package kubeproxy

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// interval is the time between two checks. A check takes a millisecond.
const interval = 250 * time.Millisecond

// Config is what a Boot needs.
type Config struct {
	Log *slog.Logger
	// Livez is host and port of kube-proxy's health endpoint; "" without kube-proxy: the Boot does not wait, and forgets that one has served.
	Livez string
	// Kick is called when kube-proxy has served.
	Kick func()
}

// Boot is the time between the start of a node and its kube-proxy's first service. Until then the node must not announce any address,
// because it cannot forward the traffic. Afterwards a Boot checks no more: kube-proxy's rules stay in the kernel while it restarts.
type Boot struct {
	log   *slog.Logger
	livez string
	kick  func()
	// find looks for a sign of kube-proxy, mark records that it has served. Tests replace both.
	find func(context.Context) sign
	mark func() error
	// looked is closed after the first check.
	looked chan struct{}
	// last is the sign of the last check.
	last   atomic.Int32
	served atomic.Bool
}

// New returns a Boot that has not checked yet.
func New(c Config) *Boot {
	b := &Boot{log: c.Log, livez: c.Livez, kick: c.Kick, mark: mark, looked: make(chan struct{})}
	b.find = func(ctx context.Context) sign { return look(ctx, c.Livez) }
	if c.Livez == "" {
		b.served.Store(true)
		close(b.looked)
	}
	return b
}

// Served reports whether kube-proxy has served since the node started, as far as the signs show.
func (b *Boot) Served() bool { return b.served.Load() }

// Looked returns a channel that is closed after the first check; before that, Served has no meaning.
func (b *Boot) Looked() <-chan struct{} { return b.looked }

// Waiting describes the last sign of kube-proxy.
func (b *Boot) Waiting() string {
	if b.livez == "" {
		return "it is not waited for"
	}
	return sign(b.last.Load()).describe(b.livez)
}

// Run checks until kube-proxy has served, or ctx ends.
func (b *Boot) Run(ctx context.Context) error {
	if b.livez == "" && exists(marker()) {
		return Forget()
	}
	if b.Served() {
		return nil
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	start := time.Now()
	var seen steadySign
	for first := true; ; first = false {
		is := b.find(ctx)
		if ctx.Err() != nil {
			return nil
		}
		was := sign(b.last.Swap(int32(is)))
		over := seen.observe(time.Now(), is)
		if over {
			b.pass(is, time.Since(start))
		} else if first || is != was {
			b.log.Info("waiting for kube-proxy; this node announces nothing until kube-proxy has served", "found", b.Waiting())
		}
		if first {
			close(b.looked)
		}
		if over {
			b.kick()
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (b *Boot) pass(by sign, after time.Duration) {
	b.served.Store(true)
	b.log.Info("kube-proxy has served", "found", b.Waiting(), "after", after.Round(time.Millisecond))
	if by == servedBefore {
		return
	}
	if err := b.mark(); err != nil {
		b.log.Warn("the next speaker on this node will wait for kube-proxy again", "error", err)
	}
}
