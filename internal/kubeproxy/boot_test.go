package kubeproxy

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestSuffices: for how long each sign must be seen, and that another one in between starts it over.
func TestSuffices(t *testing.T) {
	type look struct {
		after time.Duration
		is    sign
		want  bool
	}
	for _, tt := range []struct {
		name  string
		looks []look
	}{
		{"rules", []look{{0, allFamilies, true}}},
		{"an earlier speaker", []look{{0, servedBefore, true}}},
		{"silent", []look{{0, silent, false}, {30*time.Second - 1, silent, false}, {1, silent, true}}},
		{"it lives", []look{{0, live, false}, {10*time.Second - 1, live, false}, {1, live, true}}},
		{"it lives and makes its rules", []look{{0, live, false}, {time.Second, oneFamily, false}, {time.Second, allFamilies, true}}},
		{"the rules of one family only", []look{{0, oneFamily, false}, {2*time.Second - 1, oneFamily, false}, {1, oneFamily, true}}},
		{"it is not well", []look{{0, unready, false}, {24 * time.Hour, unready, false}}},
		{"it comes late", []look{{0, silent, false}, {29 * time.Second, unready, false}, {time.Hour, unready, false}, {1, allFamilies, true}}},
		{"it crashes again and again", []look{
			{0, silent, false}, {20 * time.Second, live, false}, {5 * time.Second, silent, false},
			{20 * time.Second, live, false}, {5 * time.Second, silent, false}, {29 * time.Second, silent, false}, {time.Second, silent, true},
		}},
	} {
		var seen steadySign
		now := time.Now()
		for i, l := range tt.looks {
			now = now.Add(l.after)
			if got := seen.observe(now, l.is); got != l.want {
				t.Errorf("%s, look %d: %t", tt.name, i, got)
			}
		}
	}
}

// play is a Boot whose node is the test's.
type play struct {
	*Boot
	is                   atomic.Int32
	looks, kicks, marked atomic.Int32
}

func newPlay(is sign) *play {
	p := &play{}
	p.is.Store(int32(is))
	p.Boot = New(Config{Log: slog.New(slog.DiscardHandler), Livez: "127.0.0.1:10256", Kick: func() { p.kicks.Add(1) }})
	p.find = func(context.Context) sign { p.looks.Add(1); return sign(p.is.Load()) }
	p.mark = func() error { p.marked.Add(1); return errors.New("no nf_tables") }
	return p
}

// TestRunStops: also while it waits, without having served.
func TestRunStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		p := newPlay(unready)
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		time.Sleep(time.Hour)
		if got, want := p.Waiting(), "the server on 127.0.0.1:10256 does not report that it is healthy"; p.Served() || got != want {
			t.Errorf("served %t: %s", p.Served(), got)
		}
		stop()
		if err := <-ended; err != nil || p.Served() || p.kicks.Load() != 0 {
			t.Errorf("%v, served %t, %d kicks", err, p.Served(), p.kicks.Load())
		}
	})
}

// TestNoLivez: without kube-proxy nothing is waited for, and what an earlier run left goes.
func TestNoLivez(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, before := range []func() error{mark, Forget} {
			if err := before(); err != nil {
				t.Fatal(err)
			}
			b := New(Config{Log: slog.New(slog.DiscardHandler)})
			b.find = func(context.Context) sign { t.Error("it looks"); return silent }
			<-b.Looked()
			if err := b.Run(t.Context()); err != nil || !b.Served() || exists(marker()) {
				t.Errorf("%v, served %t, marked %t", err, b.Served(), exists(marker()))
			}
		}
	})
}
