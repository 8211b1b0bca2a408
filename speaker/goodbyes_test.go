package main

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestGoodbyes: a node whose speaker was stopping forwards for a while after it is
// gone; one whose speaker is there, or was not stopping, is no case of that.
func TestGoodbyes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g goodbyes
		var kicked atomic.Int32
		told := map[string]lb.Member{"a": {Stopping: true}, "b": {}}
		left := func(alive ...string) map[string]bool {
			is := map[string]bool{}
			for _, name := range alive {
				is[name] = true
			}
			return g.left(time.Now(), told, is, func() { kicked.Add(1) })
		}
		if got := left("a", "b"); len(got) != 0 {
			t.Errorf("while a is stopping: %v", got)
		}
		if got := left(); len(got) != 1 || !got["a"] {
			t.Errorf("a has left, b is dead: %v", got)
		}
		time.Sleep(leftTime - time.Second)
		if got := left(); !got["a"] || kicked.Load() != 0 {
			t.Errorf("shortly before time is up: %v, kicked %d times", got, kicked.Load())
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := left(); len(got) != 0 || kicked.Load() != 1 {
			t.Errorf("when time is up: %v, kicked %d times", got, kicked.Load())
		}
		told["a"] = lb.Member{}
		if got := left("a"); len(got) != 0 {
			t.Errorf("a is back: %v", got)
		}
		told["a"] = lb.Member{Stopping: true}
		if got := left(); !got["a"] {
			t.Errorf("a has left again: %v", got)
		}
	})
}
