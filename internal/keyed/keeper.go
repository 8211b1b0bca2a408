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
	// inUse and former are the entries at the last look, at seen.
	inUse, former string
	seen          time.Time
	// tried is the key that the last write put in use: a write that failed may have landed.
	tried string
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
		if former := cmp.Or(k.former, k.tried); former != "" {
			want[Former] = []byte(former)
		}
	} else {
		k.inUse, k.former, k.seen, k.tried = have.InUse, have.Former, now, ""
	}
	if _, found := want[Key]; !found {
		want[Key] = k.Make()
		if why = "there was no key, so the controller made one"; want[InUse] == nil && !speakers {
			want[InUse] = want[Key]
		}
	}
	if why == "" {
		why = k.advance(want, have, speakers, unchanged)
	}
	if why == "" {
		return nil, ""
	}
	return want, why
}

// lost reports whether somebody has just removed or changed the key in use. If
// that may have been a while ago, speakers may already use another key.
func (k *Keeper) lost(have Keys, now time.Time) bool {
	stands := have.InUse == k.inUse || have.InUse != "" && have.InUse == k.tried
	return k.inUse != "" && !stands && now.Sub(k.seen) < Look
}

// advance takes the next step towards the wanted key, if the Secret has been unchanged for long enough.
func (k *Keeper) advance(want map[string][]byte, have Keys, speakers bool, unchanged time.Duration) (why string) {
	_, former := want[Former]
	switch {
	case have.InUse == "" && have.Wanted == "":
	case have.InUse == "":
		// Running speakers begin to use it by themselves.
		if !speakers || unchanged >= allSend {
			want[InUse], k.tried = want[Key], have.Wanted
			return "the key is in use"
		}
	case former:
		if unchanged >= allSend {
			delete(want, Former)
			return "every speaker sends with the key in use, so the former one is dropped"
		}
	case have.Wanted != "" && have.Wanted != have.InUse && unchanged >= allAccept:
		want[Former], want[InUse], k.tried = want[InUse], want[Key], have.Wanted
		return "every speaker accepts the new key, so it is in use now"
	}
	return ""
}
