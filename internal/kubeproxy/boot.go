// Package kubeproxy finds out whether kube-proxy has served since this node was
// started. Until then the node must attract nothing: what arrives has nowhere to
// go. Once it has, nobody looks again, for its rules stay in the kernel while it restarts.
package kubeproxy

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// interval is between two looks. One takes a millisecond.
const interval = 250 * time.Millisecond

// Config is what a Boot needs.
type Config struct {
	Log *slog.Logger
	// Livez is where kube-proxy says over HTTP whether it lives, host and port; "" waits for nothing.
	Livez string
	// Kick is called when kube-proxy has served.
	Kick func()
}

// Boot is the time between the start of a node and its kube-proxy's first service.
type Boot struct {
	log   *slog.Logger
	livez string
	kick  func()
	// find looks for a sign of kube-proxy, mark notes that it has served; fields so that tests can play the node.
	find func(context.Context) sign
	mark func() error
	// looked is closed after the first look.
	looked chan struct{}
	// last is the sign that was found last.
	last   atomic.Int32
	served atomic.Bool
}

// New returns a Boot that has not looked yet.
func New(c Config) *Boot {
	b := &Boot{log: c.Log, livez: c.Livez, kick: c.Kick, mark: mark, looked: make(chan struct{})}
	l := newLivez(c.Livez)
	b.find = func(ctx context.Context) sign { return look(ctx, l) }
	if c.Livez == "" {
		b.served.Store(true)
		close(b.looked)
	}
	return b
}

// Served reports whether kube-proxy has served since the node was started, for all one can tell.
func (b *Boot) Served() bool { return b.served.Load() }

// Looked is closed as soon as Served says something.
func (b *Boot) Looked() <-chan struct{} { return b.looked }

// Waiting says what there is of kube-proxy while it has not served.
func (b *Boot) Waiting() string { return sign(b.last.Load()).words(b.livez) }

// Run looks until kube-proxy has served, or ctx ends.
func (b *Boot) Run(ctx context.Context) error {
	if b.Served() {
		return nil
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	start := time.Now()
	var seen lasting
	for first := true; ; first = false {
		is := b.find(ctx)
		if ctx.Err() != nil {
			return nil
		}
		was := sign(b.last.Swap(int32(is)))
		over := seen.suffices(time.Now(), is)
		if over {
			b.pass(is, time.Since(start))
		} else if first || is != was {
			b.log.Info("waiting for kube-proxy, and announcing nothing until it has served", "found", b.Waiting())
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
	b.log.Info("not waiting for kube-proxy any more", "found", b.Waiting(), "after", after.Round(time.Millisecond))
	if by == before {
		return
	}
	if err := b.mark(); err != nil {
		b.log.Warn("the next speaker on this node will wait for kube-proxy again", "error", err)
	}
}
