package nft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// owner returns an Owned whose desired elements are *elements; no table is wanted if that is nil.
func owner(elements *[]Element) *Owned[*Static] {
	return NewOwned(Config[*Static]{Log: slog.New(slog.DiscardHandler),
		Table: sample().Table, Image: func(*Static) *Static {
			if *elements == nil {
				return nil
			}
			return &Static{Layout: sample(), Elements: *elements}
		}})
}

// TestOwned: the table is equal to each image in turn, and is deleted if no table is wanted.
func TestOwned(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		all, want := samples(), []Element(nil)
		o := owner(&want)
		for i, list := range [][]Element{all[:2], all, all[3:], {}, all[2:4], nil, all} {
			want = list
			if i == 4 {
				o = owner(&want) // another process
			}
			must(t, o.Apply(false))
			if got, err := sample().Read(); list != nil && (err != nil || len(got.Elements) != len(list)) {
				t.Errorf("image %d of %d elements: %v, %+v", i, len(list), err, got)
			}
			if _, err := o.Handle(); (err == nil) != (list != nil) {
				t.Errorf("image %d: the table: %v", i, err)
			}
			if o.Audit() {
				t.Errorf("image %d: the table differs", i)
			}
		}
	})
}

// TestGoneTwice: elements to delete may have expired. If another program deleted other elements too, they are restored.
func TestGoneTwice(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		want := samples()
		o := owner(&want)
		for i, damage := range []string{"list tables", "flush map ip sample links", "flush set ip sample plain"} {
			o.Lock()
			want = samples()
			must(t, o.Apply(false))
			nstest.Self(t).Output("nft", damage)
			want = samples()[1:5]
			sent, transact := 0, o.Transact
			o.Transact = func(b *Batch) error { sent++; return transact(b) }
			if err := o.Apply(false); err != nil || sent != []int{1, 1, 2}[i] {
				t.Fatalf("%d transactions after %s (%v): an element with an end may be gone, and the table stays", sent, damage,
					err)
			}
			o.Transact = transact
			o.Unlock()
			if o.Audit() {
				t.Errorf("%d: the table is not as it should be after %s", i, damage)
			}
		}
	})
}

// TestBackOff: attempts get rarer while the kernel refuses the table. Another image is tried at once.
func TestBackOff(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			want := samples()
			o := owner(&want)
			var asks atomic.Int64
			var takes atomic.Bool
			o.Transact = func(*Batch) error {
				asks.Add(1)
				if takes.Load() {
					return nil
				}
				return fmt.Errorf("commit: %w", unix.ENOENT)
			}
			apply := func() error {
				o.Lock()
				defer o.Unlock()
				return o.Apply(false)
			}
			nstest.Running(t, func(ctx context.Context) error { o.maintain(ctx); return nil })
			if err := apply(); !errors.Is(err, unix.ENOENT) {
				t.Fatalf("a refused table is in force: %v", err)
			}
			count := func(d time.Duration) int64 {
				before := asks.Load()
				time.Sleep(d)
				synctest.Wait()
				return asks.Load() - before
			}
			if n := count(5 * time.Second); n == 0 || n > 10 {
				t.Errorf("the kernel is asked %d times in 5 s", n)
			}
			if n := count(time.Hour); n == 0 || n > 20 {
				t.Errorf("the kernel is asked %d times in an hour", n)
			}
			takes.Store(true)
			want = want[:1]
			if err := apply(); err != nil {
				t.Errorf("another table is not asked for at once: %v", err)
			}
		})
	})
}
