package keyed

import (
	"maps"
	"slices"
	"time"
)

// Entries of the Secret. Keys in all other entries are accepted.
const (
	// Key is the key that the owner of the cluster wants to be in use.
	Key = "key"
	// InUse is the key that speakers send with, and Former the one before. The controller writes them.
	InUse  = "in-use"
	Former = "former"
)

// Length of a key; it selects AES-256.
const Length = 32

const (
	// Look is the longest time between two looks of a speaker at the Secret, and Retry the wait after one that failed.
	Look  = time.Minute
	Retry = 10 * time.Second
	// allAccept is the time until every speaker has read the Secret, even if one or two of its looks failed.
	allAccept = 3 * Look / 2
	// settled is the time until every speaker, if it finds no key in use, sends with the wanted one: the last of them
	// reads the Secret after allAccept, and at the second look from there it has been unchanged for as long.
	settled = 5 * Look
)

// Secret is the content of the Secret. Its Version is "" if there is no Secret, and
// differs after every change.
type Secret struct {
	Data    map[string][]byte
	Version string
}

// stability measures for how long the Secret has been unchanged.
type stability struct {
	version string
	since   time.Time
}

// observe records the version of a look, and returns for how long the Secret has been unchanged.
func (s *stability) observe(version string, now time.Time) time.Duration {
	if s.since.IsZero() || version != s.version {
		s.version, s.since = version, now
	}
	return now.Sub(s.since)
}

// Keys are the entries of a Secret. A key that is "" is missing, or is no key.
type Keys struct {
	InUse, Wanted, Former string
	// All are the keys of all entries, each once.
	All []string
	// Unusable are the names of the entries without a valid key.
	Unusable []string
}

// Read reads the entries of a Secret.
func Read(data map[string][]byte) Keys {
	var k Keys
	usable := map[string]string{}
	for _, entry := range slices.Sorted(maps.Keys(data)) {
		key := string(data[entry])
		if len(key) != Length {
			k.Unusable = append(k.Unusable, entry)
			continue
		}
		usable[entry] = key
		if !slices.Contains(k.All, key) {
			k.All = append(k.All, key)
		}
	}
	k.InUse, k.Wanted, k.Former = usable[InUse], usable[Key], usable[Former]
	return k
}
