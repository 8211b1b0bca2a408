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

// decideInterval is the time between two decisions of the controller.
const decideInterval = 5 * time.Second

// key returns a key whose first byte tells it from other keys.
func key(first byte) []byte { return bytes.Repeat([]byte{first}, Length) }

// data returns the entries of a Secret, given the first bytes of their keys.
func data(entries map[string]byte) map[string][]byte {
	out := map[string][]byte{}
	for name, first := range entries {
		out[name] = key(first)
	}
	return out
}

// world is a cluster whose Secret may be edited at any time.
type world struct {
	t       *testing.T
	random  *rand.Rand
	began   time.Time
	clock   time.Time
	version int
	// secret is nil if the Secret does not exist.
	secret   map[string][]byte
	speakers []*speaker
	// rotator is nil while no controller leads.
	rotator *Rotator
	next    time.Time
	lastKey byte
	// faults reports whether requests to the API server fail now and then, refuses whether it refuses all writes.
	faults, refuses bool
	history         []string
}

type speaker struct {
	running bool
	ring    Keyring
	keys    [][]byte
	next    time.Time
	failed  int
}

func newWorld(t *testing.T, seed uint64, speakers int) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 0)), clock: time.Now(), faults: true, lastKey: 100}
	w.began = w.clock
	for range speakers {
		w.speakers = append(w.speakers, &speaker{})
	}
	return w
}

func (w *world) lead() { w.rotator = &Rotator{NewKey: w.newKey} }

func (w *world) newKey() []byte {
	w.lastKey++
	return key(w.lastKey)
}

func (w *world) record(format string, args ...any) {
	names := []string{}
	for _, name := range slices.Sorted(maps.Keys(w.secret)) {
		names = append(names, fmt.Sprintf("%s:%d/%d", name, w.secret[name][0], len(w.secret[name])))
	}
	w.history = append(w.history, fmt.Sprintf("%v %s %v", w.clock.Sub(w.began), fmt.Sprintf(format, args...), names))
}

func (w *world) put(data map[string][]byte) { w.secret, w.version = data, w.version+1 }

func (w *world) read() Secret {
	if w.secret == nil {
		return Secret{}
	}
	return Secret{w.secret, strconv.Itoa(w.version)}
}

// chance reports whether a fault happens now; on average one of n calls returns true.
func (w *world) chance(n int) bool { return w.faults && w.random.IntN(n) == 0 }

func (w *world) running() bool {
	return slices.ContainsFunc(w.speakers, func(s *speaker) bool { return s.keys != nil })
}

// decide lets the controller read the Secret, and write it if needed.
func (w *world) decide() {
	if w.rotator == nil || w.clock.Before(w.next) {
		return
	}
	w.next = w.clock.Add(decideInterval)
	for {
		want, why := w.rotator.Decide(w.read(), w.running(), w.clock)
		if want == nil || w.refuses || w.chance(3) {
			return
		}
		w.put(want)
		w.record("controller: %s:", why)
		if w.chance(3) {
			return // the write landed, but its answer is lost
		}
	}
}

// update lets a speaker read the Secret if it is time to. It reports whether the speaker read it.
func (w *world) update(i int) bool {
	s := w.speakers[i]
	if !s.running || w.clock.Before(s.next) {
		return false
	}
	if s.failed < 2 && w.chance(5) {
		s.failed++
		s.next = w.clock.Add(RetryInterval)
		return false
	}
	s.failed = 0
	keys, next := s.ring.Update(w.read(), w.clock), ReadInterval
	if keys == nil {
		next = time.Second
	}
	if len(keys) > 0 && (s.keys == nil || !bytes.Equal(keys[0], s.keys[0])) {
		w.record("speaker %d sends with %d:", i, keys[0][0])
	}
	s.keys, s.next = keys, w.clock.Add(next)
	return true
}

func (w *world) start(i int) {
	w.speakers[i] = &speaker{running: true, next: w.clock}
	w.record("speaker %d starts:", i)
}

// check fails the test unless any two speakers accept each other's messages.
func (w *world) check() {
	for i, from := range w.speakers {
		for j, to := range w.speakers {
			if from.keys == nil || to.keys == nil {
				continue
			}
			if !slices.ContainsFunc(to.keys, func(k []byte) bool { return bytes.Equal(k, from.keys[0]) }) {
				for _, line := range w.history[max(0, len(w.history)-40):] {
					w.t.Log(line)
				}
				w.t.Fatalf("speaker %d does not understand %d, which sends with %d", j, i, from.keys[0][0])
			}
		}
	}
}

// run lets d pass.
func (w *world) run(d time.Duration) {
	for end := w.clock.Add(d); w.clock.Before(end); w.clock = w.clock.Add(time.Second) {
		w.decide()
		for i := range w.speakers {
			if w.update(i) {
				w.check()
			}
		}
	}
}

// edits are changes that an owner may make to the entries of the Secret; nil deletes the Secret.
var edits = map[string]func(w *world, data map[string][]byte){
	"key replaced":   func(w *world, data map[string][]byte) { data[Key] = w.anyKey() },
	"key deleted":    func(_ *world, data map[string][]byte) { delete(data, Key) },
	"key invalid":    func(_ *world, data map[string][]byte) { data[Key] = []byte("secret") },
	"Secret deleted": nil,
	"Secret replaced": func(w *world, data map[string][]byte) {
		clear(data)
		data[Key] = w.anyKey()
	},
	"Secret replaced, without a key": func(_ *world, data map[string][]byte) {
		clear(data)
		data["other"] = []byte("none")
	},
	"Secret emptied": func(_ *world, data map[string][]byte) { clear(data) },
	"in-use deleted": func(_ *world, data map[string][]byte) { delete(data, InUse) },
	"entry added":    func(w *world, data map[string][]byte) { data["other"] = w.anyKey() },
	"entry deleted":  func(_ *world, data map[string][]byte) { delete(data, "other") },
	"entries exchanged": func(_ *world, data map[string][]byte) {
		if data[Key] != nil && data["other"] != nil {
			data[Key], data["other"] = data["other"], data[Key]
		}
	},
	"label set": func(*world, map[string][]byte) {},
}

// anyKey returns one of a few keys, so that old keys return.
func (w *world) anyKey() []byte { return key(byte(1 + w.random.IntN(5))) }

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
	w.record("%s:", what)
}

// disturb makes something happen that may happen at any time.
func (w *world) disturb() {
	switch w.random.IntN(12) {
	case 0, 1:
		w.start(w.random.IntN(len(w.speakers))) // a running speaker is restarted
	case 2:
		w.rotator = nil
		w.record("no controller:")
	case 3:
		w.refuses = !w.refuses
		w.record("the controller may not write, %t:", w.refuses)
	case 4, 5:
		w.lead()
		w.record("another controller leads:")
	default:
		w.edit(slices.Sorted(maps.Keys(edits))[w.random.IntN(len(edits))])
	}
}

// TestAllUnderstandEachOther edits the Secret, and starts and stops speakers and controllers, in random order: every
// speaker accepts the messages of every other one. In the end all send with the wanted key and accept no other key.
func TestAllUnderstandEachOther(t *testing.T) {
	for seed := range uint64(200) {
		w := newWorld(t, seed, 5)
		w.lead()
		for i := range w.speakers {
			w.start(i)
		}
		w.run(10 * time.Second)
		for range 60 {
			w.disturb()
			w.run(time.Duration(w.random.ExpFloat64() * float64([]int{5, 30, 90, 300}[seed%4]) * float64(time.Second)))
		}
		w.faults, w.refuses = false, false
		w.lead()
		w.edit("key replaced")
		for i := range w.speakers {
			w.start(i)
		}
		w.run(20 * time.Minute)
		if entries := Read(w.secret); entries.InUse != entries.Wanted || w.secret[Former] != nil {
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

// settledWorld returns a world with a running speaker and a controller that use the wanted key.
func settledWorld(t *testing.T) *world {
	w := newWorld(t, 1, 2)
	w.faults = false
	w.put(data(map[string]byte{Key: 1, InUse: 1}))
	w.lead()
	w.start(0)
	w.run(10 * time.Minute)
	return w
}

// holds checks the entries of the Secret.
func (w *world) holds(when string, want map[string]byte) {
	w.t.Helper()
	if diff := cmp.Diff(data(want), w.secret); diff != "" {
		w.t.Errorf("%s, the Secret (-want +got):\n%s", when, diff)
	}
}

// accepts checks the keys of the first speaker, starting with the key that it sends with.
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

// TestKeyReplaced restarts the controller between the steps, which only delays them.
func TestKeyReplaced(t *testing.T) {
	w := settledWorld(t)
	w.put(data(map[string]byte{Key: 2, InUse: 1}))
	w.run(ReadInterval + time.Second)
	w.accepts("when all have read the Secret", 1, 2)
	w.run(settleTime - 2*ReadInterval)
	w.lead()
	w.run(settleTime - decideInterval)
	w.holds("after the first restart", map[string]byte{Key: 2, InUse: 1})
	w.run(2 * decideInterval)
	w.holds("when all accept it", map[string]byte{Key: 2, InUse: 2, Former: 1})
	w.run(ReadInterval)
	w.accepts("when all send with it", 2, 1)
	w.lead()
	w.run(settleTime - decideInterval)
	w.holds("after the second restart", map[string]byte{Key: 2, InUse: 2, Former: 1})
	w.run(2 * decideInterval)
	w.holds("in the end", map[string]byte{Key: 2, InUse: 2})
	w.run(settleTime + ReadInterval)
	w.accepts("in the end", 2)
}

// TestSecretDeleted starts a node right after the deletion: it does not wait.
func TestSecretDeleted(t *testing.T) {
	w := settledWorld(t)
	w.put(nil)
	w.start(1)
	w.run(decideInterval + 2*time.Second)
	w.holds("at once", map[string]byte{Key: w.lastKey, InUse: 1})
	if keys := w.speakers[1].keys; len(keys) != 2 {
		t.Errorf("the speaker that starts has %d keys, want 2", len(keys))
	}
	w.run(2*settleTime + ReadInterval)
	w.holds("in the end", map[string]byte{Key: w.lastKey, InUse: w.lastKey})
}

// TestSecretDeletedWithoutController: only running speakers have the key, and a starting speaker waits for them.
func TestSecretDeletedWithoutController(t *testing.T) {
	w := settledWorld(t)
	w.rotator = nil
	w.put(nil)
	w.run(10 * time.Minute)
	w.lead()
	w.start(1)
	w.run(settleTime - time.Second)
	w.holds("when a controller leads", map[string]byte{Key: w.lastKey})
	if w.speakers[1].keys != nil {
		t.Error("a speaker starts with a key that others may not know")
	}
	w.run(decideInterval)
	w.holds("when all have changed", map[string]byte{Key: w.lastKey, InUse: w.lastKey})
	if w.speakers[1].keys == nil {
		t.Error("a speaker still waits")
	}
}

// TestNoKey: an invalid key changes nothing, and stays in the Secret for its owner to see.
func TestNoKey(t *testing.T) {
	w := settledWorld(t)
	w.put(map[string][]byte{Key: []byte("secret"), InUse: key(1)})
	w.run(20 * time.Minute)
	w.accepts("with an invalid key", 1)
	if got := Read(w.secret).Unusable; !slices.Equal(got, []string{Key}) {
		t.Errorf("unusable are %v", got)
	}
	w.put(map[string][]byte{Key: []byte("secret")})
	w.rotator = nil
	w.run(20 * time.Minute)
	w.accepts("with nothing else", 1)
	w.start(1)
	w.run(20 * time.Minute)
	if w.speakers[1].keys != nil {
		t.Error("a speaker starts without any key")
	}
}

// TestFirstKey: at the first installation no speaker waits.
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
