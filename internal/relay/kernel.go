package relay

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// content is the elements of one table, in the byte order of the kernel: the value of a key in a set.
//
//	relays    relayed address: address of the former owner
//	links     relayed address: index of the link to the former owner
//	used      relayed address, unless the relay has ended: no value
//	speakers  MAC: no value
type content map[elementKey]string

type elementKey struct{ set, key string }

// relayed counts the addresses whose relays have not ended.
func (c content) relayed() (n int) {
	for at := range c {
		if at.set == usedSet {
			n++
		}
	}
	return n
}

// without returns the elements whose keys are not in o.
func (c content) without(o content) content {
	if len(o) == 0 {
		return c
	}
	out := content{}
	for at, value := range c {
		if _, has := o[at]; !has {
			out[at] = value
		}
	}
	return out
}

// listing is the result of listing a table at a time.
type listing struct {
	is content
	// ends is when the kernel ends each relay, by the key of the address, if no packet uses it before.
	ends map[string]time.Time
	err  error
}

// via returns the relays of a listing: relayed address to address of the former owner.
func (l *listing) via() map[netip.Addr]netip.Addr {
	out := map[netip.Addr]netip.Addr{}
	for at, value := range l.is {
		address, ok := netip.AddrFromSlice([]byte(at.key))
		via, viaOK := netip.AddrFromSlice([]byte(value))
		if at.set == relaysMap && ok && viaOK {
			out[address] = via
		}
	}
	return out
}

// build replaces the table, whatever its content, in one transaction.
func (t *table) build(want content) error {
	b := t.Batch()
	b.Remove()
	b.Create()
	t.Build(b)
	b.AddElements(t.Layout, elements(want))
	return t.commit(b)
}

// change makes the elements of the existing table equal to want, given what they are. What is new does not wait for what
// goes: that takes ten times as long, because the kernel waits until no packet uses it.
func (t *table) change(is, want content) error {
	if fresh := want.without(is); len(fresh) > 0 {
		b := t.Batch()
		b.AddElements(t.Layout, elements(fresh))
		if err := t.commit(b); err != nil {
			return err
		}
	}
	gone, other := elements(is.without(want)), content{}
	for at, was := range is {
		if value, stays := want[at]; stays && (was != value || at.set == usedSet && t.course[at.key].begins) {
			other[at] = value
		}
	}
	if len(gone)+len(other) == 0 {
		return nil
	}
	b := t.Batch()
	b.DeleteElements(t.Layout, append(gone, elements(other)...))
	b.AddElements(t.Layout, elements(other))
	return t.commit(b)
}

// elements lists content for a transaction.
func elements(c content) (list []nft.SetElement) {
	for at, value := range c {
		list = append(list, nft.SetElement{Set: at.set, Element: nft.Element{Key: at.key, Value: value}})
	}
	return list
}

// commit sends a transaction.
func (t *table) commit(b *nft.Batch) error {
	t.generation++
	return t.conn.Commit(b)
}

// read lists the elements of the table. It needs no lock.
func (t *table) read() listing {
	out := listing{is: content{}, ends: map[string]time.Time{}}
	if _, err := t.Recognize(false); err != nil {
		return listing{err: fmt.Errorf("list relays: %w", err)}
	}
	for _, s := range t.Sets {
		before := time.Now()
		list, err := t.List(s)
		if err != nil {
			return listing{err: fmt.Errorf("list relays: %w", err)}
		}
		for _, e := range list {
			out.is[elementKey{s.Name, e.Key}] = e.Value
			if s.Flags&unix.NFT_SET_TIMEOUT != 0 {
				out.ends[e.Key] = before.Add(e.Expires)
			}
		}
	}
	return out
}
