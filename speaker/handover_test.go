package main

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestHandOver: a speaker that is ordered to stop goes on until others own its addresses and it has heard them
// announce these, but for a bounded time. A speaker that announces nothing stops at once.
//
// Trap: a pod that stops at once, before another one took over (MetalLB: 0 to 2 s of grace;
// kube-vip #1220).
func TestHandOver(t *testing.T) {
	for _, tt := range []struct {
		name    string
		planned bool
		// obeyed is when the plan follows, 0 for never; ended when the process breaks.
		obeyed, ended time.Duration
		want          time.Duration
	}{
		{"nothing announced yet", false, 0, 0, 0},
		{"the plan follows", true, 100 * time.Millisecond, 0, 100 * time.Millisecond},
		{"no plan follows", true, 0, 0, handoverTime},
		{"broken meanwhile", true, 0, time.Second, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := slog.New(slog.DiscardHandler)
				w := &syncer{log: log, layer2: layer2.New(layer2.Config{Log: log, Links: func() []lb.Interface { return nil }})}
				w.loop = daemon.NewLoop(daemon.LoopConfig{Log: log, Sync: func(context.Context) (time.Duration, error) {
					if w.stopping.Load() && tt.obeyed > 0 {
						time.AfterFunc(tt.obeyed, func() { w.saidGoodbye.Store(true) })
					}
					return 0, nil
				}})
				go func() { _ = w.loop.Run(t.Context()) }()
				if tt.planned {
					w.last.Store(&planned{})
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				stop := make(chan struct{})
				var started time.Time
				time.AfterFunc(time.Minute, func() {
					started = time.Now()
					close(stop)
					if tt.ended > 0 {
						time.AfterFunc(tt.ended, cancel)
					}
				})
				w.handOver(ctx, stop)
				if took := time.Since(started); took < tt.want || took > tt.want+2*handoverInterval {
					t.Errorf("took %v, want %v", took, tt.want)
				}
			})
		})
	}
}
