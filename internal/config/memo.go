package config

import (
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// memo keeps what was made of each object, by its pointer: an informer replaces an object and never changes it. Its version
// would not do, which etcd repeats after it was restored.
type memo[T, P any] struct {
	parts map[*T]*part[T, P]
	// ordered are the same, by key.
	ordered []*part[T, P]
	run     int
}

// part is what was made of one object.
type part[T, P any] struct {
	made   P
	key    lb.Key
	object *T
	// run is the last one that had the object.
	run int
}

// update makes parts of the objects that are new and forgets those that are gone. It returns all, ordered by key.
func (m *memo[T, P]) update(objects []*T, create func(*T) (lb.Key, P)) []*part[T, P] {
	if m.parts == nil {
		m.parts = make(map[*T]*part[T, P], len(objects))
	}
	m.run++
	all := len(m.ordered)
	for _, o := range objects {
		p := m.parts[o]
		if p == nil {
			key, made := create(o)
			p = &part[T, P]{made: made, key: key, object: o}
			m.parts[o] = p
			m.ordered = append(m.ordered, p)
		}
		p.run = m.run
	}
	created := len(m.ordered) > all
	m.drop(func(p *part[T, P]) bool { return p.run != m.run })
	if created {
		slices.SortFunc(m.ordered, func(a, b *part[T, P]) int { return a.key.Compare(b.key) })
	}
	return m.ordered
}

// drop forgets some parts, which the next update makes again.
func (m *memo[T, P]) drop(chosen func(*part[T, P]) bool) {
	m.ordered = slices.DeleteFunc(m.ordered, func(p *part[T, P]) bool {
		if chosen(p) {
			delete(m.parts, p.object)
			return true
		}
		return false
	})
}
