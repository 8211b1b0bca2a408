package relay

import (
	"fmt"
	"maps"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// content is what one table holds beside its rules, in the form of the kernel: what a set has for a key.
//
//	relays    an address of ours: the former owner's
//	links     an address of ours: the index of the link to the former owner
//	speakers  a MAC: nothing
type content map[elementKey]string

type elementKey struct{ set, key string }

// relays counts the addresses that are relayed.
func (c content) relays() (n int) {
	for at := range c {
		if at.set == relaysMap {
			n++
		}
	}
	return n
}

// without returns what is at places that o has not.
func (c content) without(o content) content {
	out := maps.Clone(c)
	maps.DeleteFunc(out, func(at elementKey, _ string) bool { _, has := o[at]; return has })
	return out
}

// build replaces the table by one with this content, whatever is there, in one transaction.
func (t *table) build(want content) error {
	b := t.Batch()
	b.Remove()
	b.Create()
	t.Build(b)
	return t.commit(b, want)
}

// fill makes this the content of the table, which must be there, in one transaction: no packet meets an empty map.
// All members get their whole time again.
func (t *table) fill(want content) error {
	b := t.Batch()
	for _, s := range t.Sets {
		b.FlushSet(s.Name)
	}
	return t.commit(b, want)
}

// commit has the kernel take a transaction with these members at its end.
func (t *table) commit(b *nft.Batch, members content) error {
	t.generation++
	var list []nft.SetElement
	for at, value := range members {
		list = append(list, nft.SetElement{Set: at.set, Element: nft.Element{Key: at.key, Value: value}})
	}
	b.AddElements(t.Layout, list)
	return b.Commit()
}

// read returns what the table holds. It needs no lock.
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
