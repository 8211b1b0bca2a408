package memo

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// joinWorld is what a function of two maps reads, beside a third map.
type joinWorld struct {
	version  uint64
	common   int
	inputs   JoinInputs[lb.Key, int, int, lb.Key, int]
	computed int
}

// other returns the key of an entry of the third map.
func other(i int) lb.Key { return lb.Key{Name: fmt.Sprint("other", i)} }

// function returns nil for multiples of five. Some outputs depend on whether a moment has passed, and some on the time.
func (w *joinWorld) function() JoinFunction[int, int, lb.Key, int, string] {
	return JoinFunction[int, int, lb.Key, int, string]{
		Version: w.version,
		Reads: func(b int, out []lb.Key) []lb.Key {
			if b%2 == 0 {
				out = append(out, other(b%5), other(b%7))
			}
			return out
		},
		Compute: func(in JoinInput[int, int, int], c *Clock) *string {
			w.computed++
			text := fmt.Sprint(w.common, in.First, in.Second, in.Others)
			switch {
			case in.First%5 == 0:
				return nil
			case in.First == 1:
				text += c.Time().String()
			case in.First%3 == 0 && c.Passed(time.Unix(int64(in.Second), 0)):
				text += " passed"
			}
			return &text
		},
	}
}

// change changes or removes one thing.
func (w *joinWorld) change(random *rand.Rand) {
	key := lb.Key{Name: string(rune('a' + random.IntN(20)))}
	value := random.IntN(40)
	switch random.IntN(16) {
	case 0:
		w.common++
		w.version++
	case 1:
		w.inputs.First = w.inputs.First.Without(key)
	case 2:
		w.inputs.Second = w.inputs.Second.Without(key)
	case 3:
		w.inputs.Others = w.inputs.Others.Without(other(value % 7))
	case 4, 5, 6:
		w.inputs.Others = w.inputs.Others.Put(other(value%7), value)
	case 7, 8, 9, 10, 11:
		w.inputs.First = w.inputs.First.Put(key, value)
	default:
		w.inputs.Second = w.inputs.Second.Put(key, value)
	}
}

// TestJoin checks over random histories that a join has what the function returns, also later if it is not updated
// before it expires, and that it computes little.
func TestJoin(t *testing.T) {
	computed, all := 0, 0
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		w := &joinWorld{}
		var j Join[lb.Key, int, int, lb.Key, int, string]
		at := time.Unix(0, 0)
		for range 300 {
			w.change(random)
			if random.IntN(3) == 0 {
				at = at.Add(time.Duration(random.IntN(3)) * time.Second)
			}
			w.computed = 0
			j.Update(w.inputs, at, w.function())
			computed += w.computed

			end := j.Expiry()
			outputs := 0
			for key := range w.inputs.First.Keys() {
				in, exists := j.Read(key, w.function().Reads)
				if exists != w.inputs.Second.Has(key) {
					t.Fatalf("seed %d: %v has inputs: %v", seed, key, exists)
				}
				got := j.Of(key)
				if !exists {
					if got != nil {
						t.Fatalf("seed %d: %v has %v and is gone", seed, key, *got)
					}
					continue
				}
				all++
				moments := []time.Time{at}
				switch {
				case end.IsZero():
					moments = append(moments, at.Add(time.Hour))
				case end.After(at):
					moments = append(moments, end.Add(-time.Nanosecond))
				}
				for _, moment := range moments {
					want := w.function().Compute(in, NewClock(moment))
					if (got == nil) != (want == nil) || got != nil && *got != *want {
						t.Fatalf("seed %d: %v has %v, want %v", seed, key, got, want)
					}
				}
				if got != nil {
					outputs++
				}
			}
			if len(j.Keys()) != outputs {
				t.Fatalf("seed %d: %d outputs, want %d", seed, len(j.Keys()), outputs)
			}
		}
	}
	t.Logf("of %d outputs %d were computed", all, computed)
	if computed > all/2 {
		t.Error("these are too many")
	}
}
