package keyed

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Ring has the keys of one speaker. The zero Ring is that of a speaker that starts.
type Ring struct {
	// sent is the key to send with, "" before the start.
	sent string
	// accepted are the keys that are entries now, and former entries.
	accepted map[string]bool
	stability
}

// Look takes over what the Secret holds. It returns the accepted keys, the one to
// send with first, and when to look again. It returns no keys as long as
// the speaker must not start.
func (r *Ring) Look(s Secret, now time.Time) (keys [][]byte, again time.Duration) {
	unchanged := r.observe(s.Version, now)
	k := Read(s.Data)
	if r.accepted == nil {
		r.accepted = map[string]bool{}
	}
	for _, key := range k.All {
		r.accepted[key] = true
	}
	again = Look
	wanted := cmp.Or(k.InUse, k.Wanted)
	if wait := r.wait(wanted, k.InUse != "") - unchanged; wait > 0 {
		again = min(again, wait)
	} else if wanted != "" {
		r.sent = wanted
	}
	// Where nothing is wanted, each speaker may still send with another key.
	if r.sent == wanted && unchanged >= allSend {
		maps.DeleteFunc(r.accepted, func(key string, _ bool) bool { return !slices.Contains(k.All, key) })
	}
	return r.keys(), again
}

// wait returns how long the Secret must stand unchanged before the wanted key is sent with.
func (r *Ring) wait(wanted string, inUse bool) time.Duration {
	switch {
	case wanted == r.sent || r.sent == "" && inUse:
		return 0
	case r.sent == "":
		return allSend
	}
	return allAccept
}

func (r *Ring) keys() [][]byte {
	if r.sent == "" {
		return nil
	}
	keys := [][]byte{[]byte(r.sent)}
	for _, key := range slices.Sorted(maps.Keys(r.accepted)) {
		if key != r.sent {
			keys = append(keys, []byte(key))
		}
	}
	return keys
}
