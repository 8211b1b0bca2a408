package lb

import (
	"cmp"
	"strings"
)

// Key names a namespaced object.
type Key struct {
	Namespace, Name string
}

// String returns "namespace/name".
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// MarshalText makes logs and debug pages show a key as "namespace/name".
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Compare orders keys by namespace, then by name.
func (k Key) Compare(o Key) int {
	return cmp.Or(strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.Name, o.Name))
}
