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
	// steps counts what controllers wrote, by their reasons.
	steps map[string]int
	// lag is the longest time until a speaker sees a change, starts, or writes its state.
	lag     time.Duration
	history []string
}

// speaker is a node's place for a speaker.
type speaker struct {
	// hasPod and hasState report whether the API server has the node's pod and its SpeakerState, and reported is the
	// version in the latter.
	hasPod, hasState bool
	reported         string

	// The rest belongs to the process. It starts at startAt, and sends and accepts messages from then on.
	isUp, isCutOff bool
	ring           Keyring
	keys           [][]byte
	startAt        time.Time
	// read is the version that it has read last.
	read           string
	readAt, toldAt time.Time
}

// runs reports whether the speaker sends and accepts messages.
func (s *speaker) runs(at time.Time) bool { return s.isUp && s.keys != nil && !at.Before(s.startAt) }

func newWorld(t *testing.T, seed uint64, speakers int) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 0)), clock: time.Now(), faults: true, lastKey: 100}
	w.began, w.steps = w.clock, map[string]int{}
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
	line := fmt.Sprintf("%v %s %v version %d", w.clock.Sub(w.began), fmt.Sprintf(format, args...), names, w.version)
	w.history = append(w.history, line)
}

func (w *world) put(data map[string][]byte) { w.secret, w.version = data, w.version+1 }

// chance reports whether a fault happens now; on average one of n calls returns true.
func (w *world) chance(n int) bool { return w.faults && w.random.IntN(n) == 0 }

// later returns a time within the lag.
func (w *world) later() time.Time {
	if w.lag == 0 {
		return w.clock
	}
	return w.clock.Add(time.Duration(w.random.Int64N(int64(w.lag))))
}

// allRead reports whether every speaker that exists reports the present version.
func (w *world) allRead() bool {
	return !slices.ContainsFunc(w.speakers, func(s *speaker) bool {
		return s.hasPod && s.hasState && s.reported != strconv.Itoa(w.version)
	})
}

// decide lets the controller read the Secret, and write it if needed.
func (w *world) decide() {
	if w.rotator == nil || w.clock.Before(w.next) {
		return
	}
	w.next = w.clock.Add(decideInterval)
	for {
		want, why := w.rotator.Decide(w.secret, w.allRead)
		if want == nil || w.refuses || w.chance(3) {
			return
		}
		if w.chance(8) {
			w.edit(slices.Sorted(maps.Keys(edits))[w.random.IntN(len(edits))])
			return // the owner was faster, and the controller's write conflicts
		}
		w.put(want)
		w.steps[why]++
		w.record("controller: %s:", why)
		if w.chance(3) {
			return // the write landed, but its answer is lost
		}
	}
}

// update lets a process do what is due.
func (w *world) update(i int) {
	s := w.speakers[i]
	switch {
	case !s.isUp || s.isCutOff || w.chance(5):
	case s.keys == nil:
		w.begin(i)
	case !w.clock.Before(s.readAt):
		w.read(s)
		if !w.clock.Before(s.toldAt) {
			s.hasState, s.reported, s.toldAt = true, s.read, w.later()
		}
		s.readAt = w.later()
	}
}

// begin lets a process try to start.
func (w *world) begin(i int) {
	s := w.speakers[i]
	switch {
	case !s.hasState:
		s.hasState, s.reported = true, ""
		return
	case w.secret == nil:
		return
	}
	w.read(s)
	if s.keys == nil {
		s.reported = s.read
		return
	}
	s.startAt, s.readAt = w.later(), w.later()
	s.readAt = latest(s.readAt, s.startAt)
	w.record("speaker %d gets key %d:", i, s.keys[0][0])
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// read lets a process read the Secret.
func (w *world) read(s *speaker) {
	if w.secret != nil {
		s.keys, s.read = s.ring.Update(w.secret), strconv.Itoa(w.version)
	}
}

// start replaces the process of a node.
func (w *world) start(i int) {
	s := w.speakers[i]
	w.speakers[i] = &speaker{hasPod: true, hasState: s.hasState, reported: s.reported, isUp: true}
	w.record("speaker %d starts:", i)
}

// remove removes a speaker, cut off or not. Its SpeakerState stays if its node does.
func (w *world) remove(i int) {
	s := w.speakers[i]
	hasNode := w.random.IntN(2) == 0
	w.speakers[i] = &speaker{hasState: hasNode && s.hasState, reported: s.reported}
	w.record("speaker %d is removed:", i)
}

// check fails the test unless any two speakers accept each other's messages.
func (w *world) check() {
	for i, from := range w.speakers {
		for j, to := range w.speakers {
			if !from.runs(w.clock) || !to.runs(w.clock) {
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
			w.update(i)
			w.check()
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
	i := w.random.IntN(len(w.speakers))
	s := w.speakers[i]
	switch w.random.IntN(16) {
	case 0, 1:
		w.start(i)
	case 2:
		s.isUp = false
		w.record("speaker %d crashes:", i)
	case 3:
		w.remove(i)
	case 4, 5, 6:
		s.isCutOff = !s.isCutOff
		w.record("speaker %d is cut off from the API server, %t:", i, s.isCutOff)
	case 7:
		w.rotator = nil
		w.record("no controller:")
	case 8:
		w.refuses = !w.refuses
		w.record("the controller may not write, %t:", w.refuses)
	case 9, 10:
		w.lead()
		w.record("another controller leads:")
	default:
		w.edit(slices.Sorted(maps.Keys(edits))[w.random.IntN(len(edits))])
	}
}

// TestAllUnderstandEachOther edits the Secret, starts, stops and cuts off speakers, and starts and stops controllers,
// in random order: every speaker accepts the messages of every other one. In the end all send with the wanted key and
// accept no other key.
func TestAllUnderstandEachOther(t *testing.T) {
	steps := map[string]int{}
	for seed := range uint64(400) {
		w := newWorld(t, seed, 5)
		w.lag = []time.Duration{0, 5 * time.Second, 20 * time.Second, time.Minute}[seed%4]
		w.lead()
		for i := range w.speakers {
			w.start(i)
		}
		w.run(10 * time.Second)
		for range 100 {
			w.disturb()
			w.run(time.Duration(w.random.ExpFloat64() * float64([]int{3, 10, 30, 90}[seed/4%4]) * float64(time.Second)))
		}
		w.faults, w.refuses = false, false
		w.lead()
		w.edit("key replaced")
		for i := range w.speakers {
			w.start(i)
		}
		w.run(8*decideInterval + 20*w.lag)
		w.edit("entry deleted")
		w.run(8*decideInterval + 20*w.lag)
		entries := Read(w.secret)
		if entries.InUse != entries.Wanted || entries.Former != entries.Wanted {
			t.Fatalf("seed %d: the Secret holds %v", seed, w.secret)
		}
		for i, s := range w.speakers {
			if diff := cmp.Diff([][]byte{w.secret[Key]}, s.keys); diff != "" {
				t.Fatalf("seed %d: keys of speaker %d (-want +got):\n%s", seed, i, diff)
			}
		}
		for why, n := range w.steps {
			steps[why] += n
		}
	}
	if len(steps) != 6 {
		t.Errorf("controllers wrote for these reasons: %v", steps)
	}
}

// settledWorld returns a world with a controller and two speakers that use the wanted key.
func settledWorld(t *testing.T) *world {
	w := newWorld(t, 1, 3)
	w.faults = false
	w.put(data(map[string]byte{Key: 1, InUse: 1, Former: 1}))
	w.lead()
	w.start(0)
	w.start(1)
	w.run(10 * time.Second)
	return w
}

// holds checks the entries of the Secret.
func (w *world) holds(when string, want map[string]byte) {
	w.t.Helper()
	if diff := cmp.Diff(data(want), w.secret); diff != "" {
		w.t.Errorf("%s, the Secret (-want +got):\n%s", when, diff)
	}
}

// accepts checks the keys of a speaker, starting with the key that it sends with.
func (w *world) accepts(when string, speaker int, want ...byte) {
	w.t.Helper()
	var got []byte
	for _, k := range w.speakers[speaker].keys {
		got = append(got, k[0])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("%s, keys of speaker %d (-want +got):\n%s", when, speaker, diff)
	}
}

// TestCutOff cuts a speaker off before it has read a new key, and later before it sends with it. Meanwhile the
// rotation waits, also when another controller leads, and speakers that start understand it.
func TestCutOff(t *testing.T) {
	w := settledWorld(t)
	w.speakers[1].isCutOff = true
	w.put(data(map[string]byte{Key: 2, InUse: 1, Former: 1}))
	w.run(time.Hour)
	w.holds("while a speaker does not know the key", map[string]byte{Key: 2, InUse: 1, Former: 1})
	w.accepts("then", 0, 1, 2)
	w.speakers[1].isCutOff = false
	w.run(decideInterval)
	w.speakers[1].isCutOff = true
	w.run(time.Hour)
	w.holds("while a speaker sends with the former key", map[string]byte{Key: 2, InUse: 2, Former: 1})
	w.accepts("then", 0, 2, 1)
	w.accepts("then", 1, 1, 2)
	w.lead()
	w.start(2)
	w.run(time.Hour)
	w.accepts("a speaker that starts then", 2, 2, 1)
	w.speakers[1].isCutOff = false
	w.run(2 * decideInterval)
	w.holds("in the end", map[string]byte{Key: 2, InUse: 2, Former: 2})
	for i := range w.speakers {
		w.accepts("in the end", i, 2)
	}
}

// TestGone: a speaker that crashes delays a rotation until it runs again, or until its pod is gone.
func TestGone(t *testing.T) {
	w := settledWorld(t)
	w.speakers[1].isUp = false
	w.put(data(map[string]byte{Key: 2, InUse: 1, Former: 1}))
	w.run(time.Hour)
	w.holds("after a crash", map[string]byte{Key: 2, InUse: 1, Former: 1})
	w.speakers[1].hasPod = false
	w.run(3 * decideInterval)
	w.holds("when the pod is gone", map[string]byte{Key: 2, InUse: 2, Former: 2})
	w.start(1)
	w.run(decideInterval)
	w.accepts("a successor", 1, 2)
}

// TestSecretDeleted starts a speaker right after the deletion: it does not wait, though another speaker is cut off.
func TestSecretDeleted(t *testing.T) {
	w := settledWorld(t)
	w.speakers[1].isCutOff = true
	w.put(nil)
	w.start(2)
	w.run(decideInterval + 2*time.Second)
	w.holds("at once", map[string]byte{Key: w.lastKey, InUse: 1, Former: 1})
	w.accepts("the speaker that starts", 2, 1, w.lastKey)
	w.speakers[1].isCutOff = false
	w.run(4 * decideInterval)
	w.holds("in the end", map[string]byte{Key: w.lastKey, InUse: w.lastKey, Former: w.lastKey})
}

// TestSecretDeletedWithoutController: only running speakers have the key. All of them change to a new key before
// another speaker starts, and it waits while any of them is cut off.
func TestSecretDeletedWithoutController(t *testing.T) {
	w := settledWorld(t)
	w.speakers[1].isCutOff = true
	w.rotator = nil
	w.put(nil)
	w.run(time.Minute)
	w.lead()
	w.start(2)
	w.run(time.Hour)
	w.holds("when a controller leads", map[string]byte{Key: w.lastKey})
	w.accepts("a running speaker", 0, 1, w.lastKey)
	w.accepts("a speaker that starts", 2)
	w.speakers[1].isCutOff = false
	w.run(4 * decideInterval)
	w.holds("in the end", map[string]byte{Key: w.lastKey, InUse: w.lastKey, Former: w.lastKey})
	for i := range w.speakers {
		w.accepts("in the end", i, w.lastKey)
	}
}

// TestNoKey: an invalid key changes nothing, and stays in the Secret for its owner to see.
func TestNoKey(t *testing.T) {
	w := settledWorld(t)
	w.put(map[string][]byte{Key: []byte("secret"), InUse: key(1), Former: key(1)})
	w.run(time.Minute)
	w.accepts("with an invalid key", 0, 1)
	if got := Read(w.secret).Unusable; !slices.Equal(got, []string{Key}) {
		t.Errorf("unusable are %v", got)
	}
	w.put(map[string][]byte{Key: []byte("secret")})
	w.lead()
	w.start(2)
	w.run(time.Minute)
	w.accepts("with nothing else", 0, 1)
	w.accepts("with nothing else", 2)
}

// TestFormerController: a controller of an earlier version removes the entry former at the end.
func TestFormerController(t *testing.T) {
	w := settledWorld(t)
	w.rotator = nil
	w.put(data(map[string]byte{Key: 2, InUse: 1}))
	w.run(time.Minute)
	w.put(data(map[string]byte{Key: 2, InUse: 2, Former: 1}))
	w.run(time.Minute)
	w.put(data(map[string]byte{Key: 2, InUse: 2}))
	w.start(2)
	w.run(time.Minute)
	w.accepts("before", 0, 2, 1)
	w.accepts("a speaker that starts", 2, 2)
	w.lead()
	w.run(2 * decideInterval)
	w.holds("in the end", map[string]byte{Key: 2, InUse: 2, Former: 2})
	w.accepts("in the end", 0, 2)
}

// TestFirstKey: at the first installation no speaker waits for another one.
func TestFirstKey(t *testing.T) {
	w := newWorld(t, 1, 2)
	w.faults = false
	w.start(0)
	w.speakers[1].hasPod = true // its image cannot be pulled
	w.lead()
	w.run(2*decideInterval + 2*time.Second)
	w.holds("at once", map[string]byte{Key: 101, InUse: 101, Former: 101})
	w.accepts("at once", 0, 101)
}
