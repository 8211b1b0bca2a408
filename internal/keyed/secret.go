package keyed

import (
	"maps"
	"slices"
	"time"
)

// Names of the entries of the Secret. Other entries may exist, and their keys are accepted too.
const (
	// Key names the entry with the key that the owner of the cluster wants to be in use.
	Key = "key"
	// InUse names the entry with the key that speakers send with. The controller writes it.
	InUse = "in-use"
	// Former names the entry with the previous key in use. The controller writes it.
	Former = "former"
)

// Length is the length of a key in bytes. It selects AES-256.
const Length = 32

const (
	// ReadInterval is the longest time between two reads of the Secret by a speaker.
	ReadInterval = time.Minute
	// RetryInterval is the wait after a failed read.
	RetryInterval = 10 * time.Second

	// acceptTime is the time after which every speaker has read a change, even if one or two of its reads failed.
	acceptTime = 3 * ReadInterval / 2
	// settleTime is the time after which every speaker sends with the wanted key if no key is in use. The last speaker
	// reads the change within acceptTime. At its second read after that, the Secret has been unchanged for acceptTime.
	settleTime = 5 * ReadInterval
)

// Secret is the content of the Secret at one read.
type Secret struct {
	Data map[string][]byte
	// Version differs after every change. It is "" if the Secret does not exist.
	Version string
}

// Keys are the entries of a Secret, sorted by use.
type Keys struct {
	// InUse, Wanted and Former are "" if their entry is missing or not a valid key.
	InUse, Wanted, Former string
	// All are the valid keys of all entries, without duplicates.
	All []string
	// Unusable are the names of the entries without a valid key.
	Unusable []string
}

// Read sorts the entries of a Secret. A valid key has Length bytes.
func Read(data map[string][]byte) Keys {
	var k Keys
	valid := map[string]string{}

	for _, entry := range slices.Sorted(maps.Keys(data)) {
		key := string(data[entry])
		if len(key) != Length {
			k.Unusable = append(k.Unusable, entry)
			continue
		}

		valid[entry] = key
		if !slices.Contains(k.All, key) {
			k.All = append(k.All, key)
		}
	}

	k.InUse, k.Wanted, k.Former = valid[InUse], valid[Key], valid[Former]
	return k
}

// stability measures for how long the Secret has been unchanged.
type stability struct {
	version string
	since   time.Time
}

// observe records the version of a read, and returns for how long the Secret has been unchanged.
func (s *stability) observe(version string, at time.Time) time.Duration {
	if s.since.IsZero() || version != s.version {
		s.version, s.since = version, at
	}
	return at.Sub(s.since)
}
