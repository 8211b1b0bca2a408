package keyed

import "slices"

// Keyring holds the keys of one speaker. A speaker starts with the zero Keyring.
type Keyring struct {
	// sendKey encrypts what the speaker sends; "" before the first key in use.
	sendKey string
	// accepted are the keys of present entries, and of removed ones that others may send with.
	accepted []string
}

// Update takes over the content of the Secret. It returns the accepted keys, with the key to send with first. It
// returns no keys as long as the speaker must not start.
func (r *Keyring) Update(data map[string][]byte) (keys [][]byte) {
	entries := Read(data)

	if entries.isComplete() {
		r.accepted = nil
	}
	for _, key := range entries.All {
		if !slices.Contains(r.accepted, key) {
			r.accepted = append(r.accepted, key)
		}
	}

	isRunning := r.sendKey != ""
	switch {
	case entries.InUse != "":
		r.sendKey = entries.InUse
	case isRunning && entries.Former != "":
		r.sendKey = entries.Former
	}
	return r.keys()
}

// keys returns the accepted keys, with the key to send with first.
func (r *Keyring) keys() [][]byte {
	if r.sendKey == "" {
		return nil
	}

	keys := [][]byte{[]byte(r.sendKey)}
	for _, key := range r.accepted {
		if key != r.sendKey {
			keys = append(keys, []byte(key))
		}
	}
	return keys
}
