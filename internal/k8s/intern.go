package k8s

import (
	"hash/maphash"
	"maps"
	"sync"
)

// interned has one copy of each value that many objects have. It is emptied when it is full, since tenants choose some
// of the values.
var interned = struct {
	sync.Mutex
	known map[any]any
	// maps are maps that were seen recently, by a hash of their contents.
	maps [512]map[string]string
	seed maphash.Seed
}{seed: maphash.MakeSeed()}

const (
	// maxInterned bounds the shared values.
	maxInterned = 16_384
	// maxSharedMap bounds the entries of a shared map: tenants choose how many labels their objects have.
	maxSharedMap = 16
)

// sharedField returns the shared copy of the value of an optional field. It must not be changed.
func sharedField[T comparable](field *T) *T {
	if field == nil {
		return nil
	}

	interned.Lock()
	defer interned.Unlock()
	known, ok := interned.known[*field]
	if ok {
		return known.(*T)
	}

	isFull := len(interned.known) >= maxInterned
	if isFull || interned.known == nil {
		interned.known = map[any]any{}
	}

	interned.known[*field] = field
	return field
}

// shared returns the shared copy of a text.
func shared[T ~string](text T) T { return *sharedField(&text) }

// sharedMap returns the shared copy of a map, or nil if it is empty: many objects have the same few labels. It must not
// be changed.
func sharedMap(from map[string]string) map[string]string {
	if len(from) == 0 || len(from) > maxSharedMap {
		return sharedKeys(from)
	}

	var sum uint64
	for key, value := range from {
		sum += maphash.String(interned.seed, key) ^ 3*maphash.String(interned.seed, value)
	}

	own := sharedKeys(from)
	interned.Lock()
	defer interned.Unlock()
	one := &interned.maps[sum%uint64(len(interned.maps))]
	if !maps.Equal(*one, own) {
		*one = own
	}

	return *one
}

// sharedKeys returns the map with shared keys, or nil if it is empty.
func sharedKeys(from map[string]string) map[string]string {
	if len(from) == 0 {
		return nil
	}

	out := make(map[string]string, len(from))
	for key, value := range from {
		out[shared(key)] = value
	}

	return out
}
