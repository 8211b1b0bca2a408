package keyed

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Keyring holds the keys of one speaker. A speaker starts with the zero Keyring.
type Keyring struct {
	// sendKey encrypts what the speaker sends; "" before the first key in use.
	sendKey string
	// accepted are the keys of present entries and of entries that were removed lately.
	accepted map[string]bool

	stability
}

// Update takes over the content of the Secret; call it once per ReadInterval. It returns the accepted keys, with the
// key to send with first. It returns no keys as long as the speaker must not start.
func (r *Keyring) Update(s Secret, at time.Time) (keys [][]byte) {
	unchanged := r.observe(s.Version, at)
	entries := Read(s.Data)

	if r.accepted == nil {
		r.accepted = map[string]bool{}
	}
	for _, key := range entries.All {
		r.accepted[key] = true
	}

	wanted := cmp.Or(entries.InUse, entries.Wanted)
	isRunning := r.sendKey != ""
	mayUseWanted := isRunning && wanted != "" && unchanged >= acceptTime
	if entries.InUse != "" || mayUseWanted {
		r.sendKey = wanted
	}

	// A speaker that sends with another key than the wanted one shows that others may do so too. This holds for a
	// Secret without any key.
	if r.sendKey == wanted && unchanged >= settleTime {
		maps.DeleteFunc(r.accepted, func(key string, _ bool) bool { return !slices.Contains(entries.All, key) })
	}

	return r.keys()
}

// keys returns the accepted keys, with the key to send with first.
func (r *Keyring) keys() [][]byte {
	if r.sendKey == "" {
		return nil
	}

	keys := [][]byte{[]byte(r.sendKey)}
	for _, key := range slices.Sorted(maps.Keys(r.accepted)) {
		if key != r.sendKey {
			keys = append(keys, []byte(key))
		}
	}
	return keys
}
