package engine

import (
	"sync"
	"time"
)

// notes hold a sentence about why the session is not up, and when it was lost: what GoBGP reports once and cannot be read
// from it later.
type notes struct {
	// wake has one slot: the state of the session should be read.
	wake chan struct{}

	mu  sync.Mutex
	now note
	// ups and falls count how often the session came up and was lost.
	ups, falls uint64
}

type note struct {
	text string
	// lost is when the session went down, by a clock that nobody sets; zero while it is up and before it was first up.
	lost time.Time
}

func newNotes() *notes { return &notes{wake: make(chan struct{}, 1)} }

// changed wakes who reads the state.
func (n *notes) changed() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *notes) read() note {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now
}

// edit changes the note, and wakes if it did.
func (n *notes) edit(f func(*note)) {
	n.mu.Lock()
	before := n.now
	f(&n.now)
	same := before == n.now
	n.mu.Unlock()
	if !same {
		n.changed()
	}
}

// write replaces the sentence.
func (n *notes) write(text string) {
	n.edit(func(now *note) { *now = note{text: text, lost: now.lost} })
}

// suggest writes a sentence only if there is none: the first is closest to the cause.
func (n *notes) suggest(text string) {
	n.edit(func(now *note) {
		if now.text == "" {
			now.text = text
		}
	})
}

// up notes that the session is established.
func (n *notes) up() {
	n.edit(func(now *note) { *now, n.ups = note{}, n.ups+1 })
	n.changed()
}

// down notes that the session was lost.
func (n *notes) down() {
	n.edit(func(now *note) { now.lost, n.falls = time.Now(), n.falls+1 })
}

// flaps returns how often the session came up, and how often it was lost.
func (n *notes) flaps() (ups, falls uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ups, n.falls
}
