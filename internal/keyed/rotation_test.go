package keyed

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// keeperLook is between looks of the controller.
const keeperLook = 5 * time.Second

// key returns one that differs from others in its first byte.
func key(first byte) []byte { return bytes.Repeat([]byte{first}, Length) }

// data returns the entries of a Secret, with keys by their first bytes.
func data(entries map[string]byte) map[string][]byte {
	out := map[string][]byte{}
	for name, first := range entries {
		out[name] = key(first)
	}
	return out
}

// world is a cluster whose Secret anybody may edit at any time.
type world struct {
	t       *testing.T
	random  *rand.Rand
	began   time.Time
	now     time.Time
	version int
	// secret is nil where there is none.
	secret   map[string][]byte
	speakers []*speaker
	// keeper is nil while no controller leads.
	keeper *Keeper
	next   time.Time
	made   byte
	// faults of the API server happen; refuses: the controller cannot write at all.
	faults, refuses bool
	story           []string
}

type speaker struct {
	running bool
	ring    Ring
	keys    [][]byte
	next    time.Time
	failed  int
}

func newWorld(t *testing.T, seed uint64, speakers int) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 0)), now: time.Now(), faults: true, made: 100}
	w.began = w.now
	for range speakers {
		w.speakers = append(w.speakers, &speaker{})
	}
	return w
}

func (w *world) lead() { w.keeper = &Keeper{Make: w.make} }

func (w *world) make() []byte {
	w.made++
	return key(w.made)
}

func (w *world) tell(format string, args ...any) {
	names := []string{}
	for _, name := range slices.Sorted(maps.Keys(w.secret)) {
		names = append(names, fmt.Sprintf("%s:%d/%d", name, w.secret[name][0], len(w.secret[name])))
	}
	w.story = append(w.story, fmt.Sprintf("%v %s %v", w.now.Sub(w.began), fmt.Sprintf(format, args...), names))
}

func (w *world) put(data map[string][]byte) { w.secret, w.version = data, w.version+1 }

func (w *world) read() Secret {
	if w.secret == nil {
		return Secret{}
	}
	return Secret{w.secret, strconv.Itoa(w.version)}
}

// chance reports whether a fault happens that does so once in n.
func (w *world) chance(n int) bool { return w.faults && w.random.IntN(n) == 0 }

func (w *world) running() bool {
	return slices.ContainsFunc(w.speakers, func(s *speaker) bool { return s.keys != nil })
}

// keep is a look of the controller.
func (w *world) keep() {
	if w.keeper == nil || w.now.Before(w.next) {
		return
	}
	w.next = w.now.Add(keeperLook)
	for {
		want, why := w.keeper.Decide(w.read(), w.running(), w.now)
		if want == nil || w.refuses || w.chance(3) {
			return
		}
		w.put(want)
		w.tell("controller: %s:", why)
		if w.chance(3) {
			return // it landed, and the controller does not hear of it
		}
	}
}

// look is a look of a speaker. It reports whether there was one.
func (w *world) look(i int) bool {
	s := w.speakers[i]
	if !s.running || w.now.Before(s.next) {
		return false
	}
	if s.failed < 2 && w.chance(5) {
		s.failed++
		s.next = w.now.Add(Retry)
		return false
	}
	s.failed = 0
	keys, again := s.ring.Look(w.read(), w.now), Look
	if keys == nil {
		again = time.Second
	}
	if len(keys) > 0 && (s.keys == nil || !bytes.Equal(keys[0], s.keys[0])) {
		w.tell("speaker %d sends with %d:", i, keys[0][0])
	}
	s.keys, s.next = keys, w.now.Add(again)
	return true
}

func (w *world) start(i int) {
	w.speakers[i] = &speaker{running: true, next: w.now}
	w.tell("speaker %d starts:", i)
}

// check that any two speakers accept what the other sends.
func (w *world) check() {
	for i, from := range w.speakers {
		for j, to := range w.speakers {
			if from.keys == nil || to.keys == nil {
				continue
			}
			if !slices.ContainsFunc(to.keys, func(k []byte) bool { return bytes.Equal(k, from.keys[0]) }) {
				for _, line := range w.story[max(0, len(w.story)-40):] {
					w.t.Log(line)
				}
				w.t.Fatalf("speaker %d does not understand %d, which sends with %d", j, i, from.keys[0][0])
			}
		}
	}
}

// run lets time pass.
func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(time.Second) {
		w.keep()
		for i := range w.speakers {
			if w.look(i) {
				w.check()
			}
		}
	}
}

// edits are what an owner may do to the entries of the Secret; nil deletes it.
var edits = map[string]func(w *world, data map[string][]byte){
	"key replaced":   func(w *world, data map[string][]byte) { data[Key] = w.some() },
	"key deleted":    func(_ *world, data map[string][]byte) { delete(data, Key) },
	"key is none":    func(_ *world, data map[string][]byte) { data[Key] = []byte("secret") },
	"Secret deleted": nil,
	"Secret replaced": func(w *world, data map[string][]byte) {
		clear(data)
		data[Key] = w.some()
	},
	"Secret replaced by one with no key": func(_ *world, data map[string][]byte) {
		clear(data)
		data["other"] = []byte("none")
	},
	"Secret emptied": func(_ *world, data map[string][]byte) { clear(data) },
	"in-use deleted": func(_ *world, data map[string][]byte) { delete(data, InUse) },
	"entry added":    func(w *world, data map[string][]byte) { data["other"] = w.some() },
	"entry deleted":  func(_ *world, data map[string][]byte) { delete(data, "other") },
	"entries exchanged": func(_ *world, data map[string][]byte) {
		if data[Key] != nil && data["other"] != nil {
			data[Key], data["other"] = data["other"], data[Key]
		}
	},
	"label set": func(*world, map[string][]byte) {},
}

// some returns one of a few keys: old ones come back.
func (w *world) some() []byte { return key(byte(1 + w.random.IntN(5))) }

func (w *world) edit(what string) {
	var data map[string][]byte
	if change := edits[what]; change != nil {
		data = map[string][]byte{}
		maps.Copy(data, w.secret)
		change(w, data)
	}
	if w.secret == nil && len(data) == 0 {
		return
	}
	w.put(data)
	w.tell("%s:", what)
}

// happen is something that may happen at any time.
func (w *world) happen() {
	switch w.random.IntN(12) {
	case 0, 1:
		w.start(w.random.IntN(len(w.speakers))) // a running one is restarted
	case 2:
		w.keeper = nil
		w.tell("no controller:")
	case 3:
		w.refuses = !w.refuses
		w.tell("the controller may not write, %t:", w.refuses)
	case 4, 5:
		w.lead()
		w.tell("another controller leads:")
	default:
		w.edit(slices.Sorted(maps.Keys(edits))[w.random.IntN(len(edits))])
	}
}

// Whatever is done to the Secret, and whoever starts and stops, in any order: nobody is
// cut off from others. When it is over, all send with the wanted key and accept no other.
func TestAllUnderstandEachOther(t *testing.T) {
	for seed := range uint64(200) {
		w := newWorld(t, seed, 5)
		w.lead()
		for i := range w.speakers {
			w.start(i)
		}
		w.run(10 * time.Second)
		for range 60 {
			w.happen()
			w.run(time.Duration(w.random.ExpFloat64() * float64([]int{5, 30, 90, 300}[seed%4]) * float64(time.Second)))
		}
		w.faults, w.refuses = false, false
		w.lead()
		w.edit("key replaced")
		for i := range w.speakers {
			w.start(i)
		}
		w.run(20 * time.Minute)
		if now := Read(w.secret); now.InUse != now.Wanted || w.secret[Former] != nil {
			t.Fatalf("seed %d: the Secret holds %v", seed, w.secret)
		}
		w.edit("entry deleted")
		w.run(6 * time.Minute)
		for i, s := range w.speakers {
			if diff := cmp.Diff([][]byte{w.secret[Key]}, s.keys); diff != "" {
				t.Fatalf("seed %d: keys of speaker %d (-want +got):\n%s", seed, i, diff)
			}
		}
	}
}

// quiet returns a world with one speaker and a controller, in which all is in order.
func quiet(t *testing.T) *world {
	w := newWorld(t, 1, 2)
	w.faults = false
	w.put(data(map[string]byte{Key: 1, InUse: 1}))
	w.lead()
	w.start(0)
	w.run(10 * time.Minute)
	return w
}

// holds checks what the Secret holds.
func (w *world) holds(when string, want map[string]byte) {
	w.t.Helper()
	if diff := cmp.Diff(data(want), w.secret); diff != "" {
		w.t.Errorf("%s, the Secret (-want +got):\n%s", when, diff)
	}
}

// accepts checks the keys of the first speaker; it sends with the first.
func (w *world) accepts(when string, want ...byte) {
	w.t.Helper()
	var got []byte
	for _, k := range w.speakers[0].keys {
		got = append(got, k[0])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("%s, keys of the speaker (-want +got):\n%s", when, diff)
	}
}

// The controller is restarted between the steps, and only takes longer.
func TestKeyReplaced(t *testing.T) {
	w := quiet(t)
	w.put(data(map[string]byte{Key: 2, InUse: 1}))
	w.run(Look + time.Second)
	w.accepts("when all have looked", 1, 2)
	w.run(settled - 2*Look)
	w.lead()
	w.run(settled - keeperLook)
	w.holds("after the first restart", map[string]byte{Key: 2, InUse: 1})
	w.run(2 * keeperLook)
	w.holds("when all accept it", map[string]byte{Key: 2, InUse: 2, Former: 1})
	w.run(Look)
	w.accepts("when all send with it", 2, 1)
	w.lead()
	w.run(settled - keeperLook)
	w.holds("after the second restart", map[string]byte{Key: 2, InUse: 2, Former: 1})
	w.run(2 * keeperLook)
	w.holds("in the end", map[string]byte{Key: 2, InUse: 2})
	w.run(settled + Look)
	w.accepts("in the end", 2)
}

// A node that starts just then does not wait.
func TestSecretDeleted(t *testing.T) {
	w := quiet(t)
	w.put(nil)
	w.start(1)
	w.run(keeperLook + 2*time.Second)
	w.holds("at once", map[string]byte{Key: w.made, InUse: 1})
	if keys := w.speakers[1].keys; len(keys) != 2 {
		t.Errorf("the speaker that starts has %d keys, want 2", len(keys))
	}
	w.run(2*settled + Look)
	w.holds("in the end", map[string]byte{Key: w.made, InUse: w.made})
}

// Only running speakers know the key, and one that starts waits for them.
func TestSecretDeletedWithoutController(t *testing.T) {
	w := quiet(t)
	w.keeper = nil
	w.put(nil)
	w.run(10 * time.Minute)
	w.lead()
	w.start(1)
	w.run(settled - time.Second)
	w.holds("when somebody leads", map[string]byte{Key: w.made})
	if w.speakers[1].keys != nil {
		t.Error("a speaker starts with a key that others may not know")
	}
	w.run(keeperLook)
	w.holds("when all have changed", map[string]byte{Key: w.made, InUse: w.made})
	if w.speakers[1].keys == nil {
		t.Error("a speaker waits still")
	}
}

// What is no key changes nothing, and is left for its owner to see.
func TestNoKey(t *testing.T) {
	w := quiet(t)
	w.put(map[string][]byte{Key: []byte("secret"), InUse: key(1)})
	w.run(20 * time.Minute)
	w.accepts("with a key that is none", 1)
	if got := Read(w.secret).Unusable; !slices.Equal(got, []string{Key}) {
		t.Errorf("unusable are %v", got)
	}
	w.put(map[string][]byte{Key: []byte("secret")})
	w.keeper = nil
	w.run(20 * time.Minute)
	w.accepts("with nothing else", 1)
	w.start(1)
	w.run(20 * time.Minute)
	if w.speakers[1].keys != nil {
		t.Error("a speaker starts without any key")
	}
}

// Nobody waits at the first installation.
func TestFirstKey(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.faults = false
	w.start(0)
	w.run(time.Second)
	w.lead()
	w.run(2 * time.Second)
	w.holds("at once", map[string]byte{Key: 101, InUse: 101})
	w.accepts("at once", 101)
}
