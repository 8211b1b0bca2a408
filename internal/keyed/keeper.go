package keyed

import (
	"cmp"
	"maps"
	"time"
)

// Keeper is what the leading controller remembers of the Secret. A controller that becomes the leader again needs a new
// one: another controller may have changed the Secret in between.
type Keeper struct {
	// Make returns a new key.
	Make func() []byte
	stability
	// inUse and former are the entries at the last look, at seen, or those of the step that was decided then: a write
	// that failed may have landed, and speakers may send with its key.
	inUse, former string
	seen          time.Time
}

// Decide returns what the Secret should hold, and why it should change; nil
// leaves it. speakers reports whether any speaker runs.
func (k *Keeper) Decide(s Secret, speakers bool, now time.Time) (want map[string][]byte, why string) {
	unchanged := k.observe(s.Version, now)
	have := Read(s.Data)
	want = maps.Clone(s.Data)
	if want == nil {
		want = map[string][]byte{}
	}
	if k.lost(have, now) {
		why = "the key in use was removed, and is put back"
		want[InUse] = []byte(k.inUse)
		if k.former != "" {
			want[Former] = []byte(k.former)
		}
	} else {
		k.inUse, k.former, k.seen = have.InUse, have.Former, now
	}
	if _, found := want[Key]; !found {
		want[Key] = k.Make()
		why = "there was no key, so the controller made one"
	}
	switch {
	case Read(want).InUse == "" && !speakers: // so no speaker has another key
		why = cmp.Or(k.advance(want, settled), why)
	case why == "":
		why = k.advance(want, unchanged)
	}
	if why == "" {
		return nil, ""
	}
	return want, why
}

// lost reports whether the key in use has just been removed or changed. If
// that may have been a while ago, speakers may already use another key.
func (k *Keeper) lost(have Keys, now time.Time) bool {
	return k.inUse != "" && have.InUse != k.inUse && now.Sub(k.seen) < Look
}

// advance takes the next step towards the wanted key, if the Secret has been unchanged for long enough.
func (k *Keeper) advance(want map[string][]byte, unchanged time.Duration) (why string) {
	have := Read(want)
	_, former := want[Former]
	switch {
	case unchanged < settled:
		return ""
	case former && have.InUse != "":
		delete(want, Former)
		why = "every speaker sends with the key in use, so the former one is dropped"
	case have.Wanted != "" && have.Wanted != have.InUse:
		want[InUse] = want[Key]
		if have.InUse != "" {
			want[Former] = []byte(have.InUse)
		}
		why = "every speaker accepts the new key, so it is in use now"
	}
	k.inUse, k.former = string(want[InUse]), string(want[Former])
	return why
}
