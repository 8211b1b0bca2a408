package keyed

import (
	"maps"
	"slices"
)

// Names of the entries of the Secret. Other entries may exist, and their keys are accepted too.
const (
	// Key names the entry with the key that the owner of the cluster wants to be in use.
	Key = "key"
	// InUse names the entry with the key that speakers send with. The controller writes it.
	InUse = "in-use"
	// Former names the entry with the key that some speakers may still send with. The controller writes it.
	Former = "former"
)

// Length is the length of a key in bytes. It selects AES-256.
const Length = 32

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

// isComplete reports whether every speaker sends with the key in use, so that no removed key is needed.
func (k Keys) isComplete() bool { return k.InUse != "" && k.Former == k.InUse }
