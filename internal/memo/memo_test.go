package memo

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// world is what a function of small numbers reads.
type world struct {
	version, source uint64
	common          int
	inputs          map[int]int
	// computed counts the calls of the function.
	computed int
}

// function adds what a key depends on. Every third key depends on the time: key 3 has it as a value, and the others
// whether the moment of their inputs has passed.
func (w *world) function() Function[int, []int, int] {
	var buffer [1]int
	return Function[int, []int, int]{
		Version: w.version,
		Source:  w.source,
		Inputs:  func(key int) []int { buffer[0] = w.inputs[key]; return buffer[:] },
		Keep:    slices.Clone[[]int],
		Equal:   slices.Equal[[]int],
		Compute: func(key int, in []int, c *Clock) int {
			w.computed++
			out := 1000*w.common + in[0]
			switch {
			case key == 3:
				out += int(c.Time().Unix()) * 1_000_000
			case key%3 == 0 && c.Passed(time.Unix(int64(in[0]), 0)):
				out = -out
			}
			return out
		},
	}
}

// TestTable checks over random histories that a table has what the function returns, tells what differs, and computes
// little.
func TestTable(t *testing.T) {
	computed, all := 0, 0
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		w := &world{inputs: map[int]int{}}
		var table Table[int, []int, int]
		known, at := map[int]int{}, time.Unix(0, 0)
		for range 200 {
			w.change(random)
			if random.IntN(3) == 0 {
				at = at.Add(time.Duration(random.IntN(5)) * time.Second)
			}
			keys := slices.Collect(maps.Keys(w.inputs))
			w.computed = 0
			f := w.function()
			if seed%2 == 0 {
				f.Source = 0 // the inputs are compared in each update
			}
			apply(t, known, table.Update(keys, at, f))
			computed += w.computed
			all += len(keys)

			want := map[int]int{}
			for _, key := range keys {
				want[key] = w.function().Compute(key, []int{w.inputs[key]}, NewClock(at))
				if got := table.Of(key); got == nil || *got != want[key] {
					t.Fatalf("seed %d: key %d has %v, want %d", seed, key, got, want[key])
				}
			}
			if !maps.Equal(known, want) {
				t.Fatalf("seed %d: by the changes it has %v, want %v", seed, known, want)
			}
		}
	}
	if computed > all/2 {
		t.Errorf("of %d results %d were computed", all, computed)
	}
}

// change changes an input, removes one, or changes what all have in common.
func (w *world) change(random *rand.Rand) {
	key := 1 + random.IntN(30)
	switch random.IntN(10) {
	case 0:
		w.common++
		w.version++
	case 1:
		delete(w.inputs, key)
	case 2:
		w.source++ // something that concerns no key
	default:
		w.inputs[key] = random.IntN(100)
		w.source++
	}
}

// apply applies changes to what was known.
func apply(t *testing.T, known map[int]int, changes []Change[int, int]) {
	t.Helper()
	for _, c := range changes {
		before, exists := known[c.Key]
		if exists != (c.Before != nil) || exists && *c.Before != before {
			t.Fatalf("key %d had %v by the change, and %d", c.Key, c.Before, before)
		}
		delete(known, c.Key)
		if c.After != nil {
			known[c.Key] = *c.After
		}
	}
}

// TestReuse checks that an output that is computed again may share with the last one, and that inputs are compared if
// their differences are not counted.
func TestReuse(t *testing.T) {
	w := &world{inputs: map[int]int{1: 10, 2: 20}}
	var table Table[int, []int, int]
	f := w.function()
	f.Source = 0
	f.Reuse = func(last, next int) int {
		if last/10 == next/10 {
			return last
		}
		return next
	}
	for _, tt := range []struct{ input, changes, want int }{
		{10, 2, 10},
		{11, 1, 10},
		{11, 0, 10},
		{21, 1, 21},
	} {
		w.inputs[1] = tt.input
		changes := table.Update([]int{1, 2}, time.Unix(0, 0), f)
		if len(changes) != tt.changes || *table.Of(1) != tt.want {
			t.Errorf("%d makes %d changes, and %d", tt.input, len(changes), *table.Of(1))
		}
	}
}

// TestFirst checks that an update may compute some results before others, and that the next one computes the rest.
func TestFirst(t *testing.T) {
	w := &world{inputs: map[int]int{1: 10, 2: 20}}
	var table Table[int, []int, int]
	keys, at := []int{1, 2}, time.Unix(0, 0)
	check := func(isLate bool, one, two int) {
		t.Helper()
		if table.IsLate() != isLate || *table.Of(1) != one || *table.Of(2) != two {
			t.Errorf("late: %v, results: %d and %d", table.IsLate(), *table.Of(1), *table.Of(2))
		}
	}
	table.Update(keys, at, w.function())
	check(false, 10, 20)

	w.common, w.version = 1, 1
	f := w.function()
	f.IsFirst = func(_ int, out *int) bool { return *out == 20 }
	table.Update(keys, at, f)
	check(true, 10, 1020)
	table.Update(keys, at, w.function())
	check(false, 1010, 1020)
}
