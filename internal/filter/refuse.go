package filter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// The kernel applies a transaction as a whole, so that one list which it refuses would keep all others from being in
// force. After a refusal a table beside the real one, which exists for no packet, shows which lists it was.

// maxPrefixes bounds the prefixes in the table, each list counted once: 250,000 take the kernel some 25 MiB, and half a
// second of one core for the whole table.
const maxPrefixes = 250_000

// Refused returns the Services that are closed because of their lists, and why. All others are in force.
func (t *Table) Refused() map[lb.Key]error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

// try has the kernel check an image without an effect.
func (t *Table) try(img *image) error {
	l := img.layout.table()
	return t.send(l.Trial(func(b *nft.Batch, l *nft.Layout) { img.build(b, l) }))
}

// tryEmpty has the kernel check the table without frontends, which costs little.
func (t *Table) tryEmpty() error {
	return t.try(newImage(&t.library, &Desired{NoLog: t.desired.NoLog}, nil, nil))
}

// maxTries bounds the attempts of one search: each takes as long as the whole table. Lists that it does not reach are
// closed until the next one.
const maxTries = 64

// search finds the lists that the kernel refuses.
type search struct {
	table *Table
	// like has the lists of desired.
	like *image
	// refused are the lists that were not admitted yet, and why.
	refused map[*list]error
	tries   int
}

// try returns the kernel's answer to the table without the refused lists.
func (s *search) try() error {
	s.tries++
	return s.table.try(newImage(&s.table.library, s.table.desired, s.refused, s.like))
}

// admit admits those of the lists that the kernel does not refuse together with those that are admitted.
func (s *search) admit(list []*list) {
	if len(list) == 0 || s.tries == maxTries {
		return
	}
	before := maps.Clone(s.refused)
	for _, l := range list {
		delete(s.refused, l)
	}
	err := s.try()
	if err == nil {
		return
	}
	s.refused = before
	if half := len(list) / 2; half > 0 {
		s.admit(list[:half])
		s.admit(list[half:])
	} else {
		s.refused[list[0]] = err
	}
}

// findRefused returns the lists because of which the kernel refuses an image; nil if the lists are not the reason. It
// begins with the lists of another image, which the kernel had.
func (t *Table) findRefused(img, had *image, because error) map[*list]error {
	if t.lacking = t.tryEmpty() != nil; t.lacking || t.try(img) == nil {
		return nil
	}
	s := search{table: t, like: img, refused: maps.Clone(t.refused)}
	if s.refused == nil {
		s.refused = make(map[*list]error)
	}
	fresh, old := lists{}, lists{}
	for i := range img.frontends {
		fresh.add(&img.frontends[i])
		old.add(&img.frontends[i])
	}
	if had != nil {
		fresh.without(had)
	}
	for l := range old {
		s.refused[l] = because
	}
	maps.DeleteFunc(old, func(l *list, _ bool) bool { return fresh[l] })
	if s.try() != nil {
		return nil
	}
	s.admit(img.fair(old))
	s.admit(img.fair(fresh))
	return s.refused
}

// readmit asks the kernel again for the refused lists.
func (t *Table) readmit() error {
	s := search{table: t, like: t.actual, refused: maps.Clone(t.refused)}
	s.admit(slices.Collect(maps.Keys(t.refused)))
	if len(s.refused) < len(t.refused) {
		t.refused = s.refused
		return t.apply()
	}
	return nil
}

// beyond returns the refused lists, and those that would be beyond maxPrefixes.
func (img *image) beyond(refused map[*list]error) map[*list]error {
	all, out, n := lists{}, make(map[*list]error), 0
	maps.Copy(out, refused)
	for i := range img.frontends {
		all.add(&img.frontends[i])
	}
	for _, l := range img.fair(all) {
		if n+l.size > maxPrefixes {
			out[l] = fmt.Errorf("its list of %d prefixes is beyond the bound of %d for all lists of a node", l.size, maxPrefixes)
		} else {
			n += l.size
		}
	}
	return out
}

// fair returns lists in the order in which they are admitted: those of namespaces with few prefixes first, so that no
// tenant has the lists of another closed.
func (img *image) fair(of lists) []*list {
	type use struct {
		namespace string
		list      *list
	}
	uses, total, rank := make(map[use]bool), make(map[string]int), make(map[*list]int)
	for i := range img.frontends {
		fe := &img.frontends[i]
		for _, l := range []*list{fe.allow, fe.deny} {
			if u := (use{fe.Service.Namespace, l}); l != nil && !uses[u] {
				uses[u] = true
				total[u.namespace] += l.size
			}
		}
	}
	for u := range uses {
		if n, known := rank[u.list]; !known || total[u.namespace] < n {
			rank[u.list] = total[u.namespace]
		}
	}
	return slices.SortedFunc(maps.Keys(of), func(a, b *list) int {
		return cmp.Or(cmp.Compare(rank[a], rank[b]), cmp.Compare(a.size, b.size), strings.Compare(a.keys, b.keys))
	})
}
