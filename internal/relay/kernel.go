package relay

import (
	"fmt"
	"maps"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// content is the elements of one table, in the byte order of the kernel: the value of a key in a set.
//
//	relays    relayed address: address of the former owner
//	links     relayed address: index of the link to the former owner
//	speakers  MAC: no value
type content map[elementKey]string

type elementKey struct{ set, key string }

// relays counts the relayed addresses.
func (c content) relays() (n int) {
	for at := range c {
		if at.set == relaysMap {
			n++
		}
	}
	return n
}

// without returns the elements whose keys are not in o.
func (c content) without(o content) content {
	out := maps.Clone(c)
	maps.DeleteFunc(out, func(at elementKey, _ string) bool { _, has := o[at]; return has })
	return out
}

// build replaces the table, whatever its content, in one transaction.
func (t *table) build(want content) error {
	b := t.Batch()
	b.Remove()
	b.Create()
	t.Build(b)
	return t.commit(b, want)
}

// fill replaces the elements of the existing table in one transaction, so that no packet meets an empty map. It renews
// the timeout of every element.
func (t *table) fill(want content) error {
	b := t.Batch()
	for _, s := range t.Sets {
		b.FlushSet(s.Name)
	}
	return t.commit(b, want)
}

// commit appends elements to a transaction and sends it.
func (t *table) commit(b *nft.Batch, elements content) error {
	t.generation++
	var list []nft.SetElement
	for at, value := range elements {
		list = append(list, nft.SetElement{Set: at.set, Element: nft.Element{Key: at.key, Value: value}})
	}
	b.AddElements(t.Layout, list)
	return b.Commit()
}

// read lists the elements of the table. It needs no lock.
func (t *table) read() (content, error) {
	is, err := t.Read(false)
	if err != nil {
		return nil, fmt.Errorf("list relays: %w", err)
	}
	out := content{}
	for _, m := range is.Elements {
		out[elementKey{m.Set, m.Key}] = m.Value
	}
	return out, nil
}
