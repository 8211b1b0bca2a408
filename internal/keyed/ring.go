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

// Look takes over what the Secret holds, once in the time Look. It returns the accepted keys, the one to
// send with first; none as long as the speaker must not start.
func (r *Ring) Look(s Secret, now time.Time) (keys [][]byte) {
	unchanged := r.observe(s.Version, now)
	k := Read(s.Data)
	if r.accepted == nil {
		r.accepted = map[string]bool{}
	}
	for _, key := range k.All {
		r.accepted[key] = true
	}
	wanted := cmp.Or(k.InUse, k.Wanted)
	if k.InUse != "" || r.sent != "" && wanted != "" && unchanged >= allAccept {
		r.sent = wanted
	}
	// Where nothing is wanted, each speaker may still send with another key.
	if r.sent == wanted && unchanged >= settled {
		maps.DeleteFunc(r.accepted, func(key string, _ bool) bool { return !slices.Contains(k.All, key) })
	}
	return r.keys()
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
