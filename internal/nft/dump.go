package nft

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// dump requests all objects of a type in the table, or a single one without NLM_F_DUMP, and calls fn for each. It uses
// a socket of its own, so that an aborted listing leaves no replies behind.
func (t Table) dump(typ int, flags uint16, of func(*attributes), fn func(attributes)) error {
	var c Conn
	if err := c.open(); err != nil {
		return err
	}

	var request attributes
	request.tableMessage(t, typ, flags, of)
	return errors.Join(c.exchange(request, flags&unix.NLM_F_DUMP == 0, fn), c.Close())
}

// ErrChanged means that transactions, of any table, interrupted every attempt to list a table.
var ErrChanged = errors.New("transactions kept interrupting the listing")

// attempts limits how often a listing starts again after a transaction of any table has interrupted it.
const attempts = 10

// retryChanged repeats a listing until no transaction interrupts it.
func retryChanged(list func() error) (err error) {
	for range attempts {
		if err = list(); !errors.Is(err, ErrChanged) {
			break
		}
	}
	return err
}

// list adds the elements of a set of a table.
func (c *Content) list(t Table, s Set) error {
	before, now := len(c.Elements), time.Now()
	ends := make(map[string]bool)
	begin := func() { c.Elements = c.Elements[:before]; clear(ends) }
	err := t.eachElement(s.Name, begin, func(a attributes) {
		e, expires := decodeElement(s.Name, a)
		if a.find(unix.NFTA_SET_ELEM_FLAGS).number()&unix.NFT_SET_ELEM_INTERVAL_END != 0 {
			ends[e.Key] = true
			return
		}

		c.Elements = append(c.Elements, e)
		if expires > 0 {
			c.Ends[Element{Set: e.Set, Key: e.Key}] = now.Add(expires)
		}
	})
	if s.Intervals() {
		pairEnds(c.Elements[before:], ends)
	}

	return err
}

// Counters calls fn for each element of a set that packets matched, with their number. Where a transaction interrupts
// the listing fn may be called for an element again.
func (t Table) Counters(set string, fn func(key string, packets uint64)) error {
	return t.eachElement(set, func() {}, func(e attributes) {
		if n := e.find(unix.NFTA_SET_ELEM_EXPR).packets(); n > 0 {
			fn(string(e.find(unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)), n)
		}
	})
}

// eachElement calls fn for each element of a set, and begin before that, again for each attempt.
func (t Table) eachElement(set string, begin func(), fn func(attributes)) error {
	of := func(a *attributes) { a.putText(unix.NFTA_SET_ELEM_LIST_SET, set) }
	err := retryChanged(func() error {
		begin()
		return t.dump(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, of, func(a attributes) {
			for e := range a.find(unix.NFTA_SET_ELEM_LIST_ELEMENTS).each(unix.NFTA_LIST_ELEM) {
				fn(e)
			}
		})
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", set, err)
	}

	return nil
}

// pairEnds assigns to each interval the nearest end after its start.
func pairEnds(list []Element, ends map[string]bool) {
	sorted := slices.Sorted(maps.Keys(ends))
	for i := range list {
		at, found := slices.BinarySearch(sorted, list[i].Key)
		if found {
			at++
		}

		if at < len(sorted) {
			list[i].Value = sorted[at]
		}
	}
}

// decodeElement reads an element of a set, and the time until it expires, 0 if it never does.
func decodeElement(set string, a attributes) (e Element, expires time.Duration) {
	e.Set, e.Key = set, string(a.find(unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE))
	e.Value = string(a.find(unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE))
	if chain := a.find(unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN); chain != nil {
		e.Value = chain.text()
	}
	return e, time.Duration(a.find(unix.NFTA_SET_ELEM_EXPIRATION).number()) * time.Millisecond
}

// packets returns the packets of a counter expression, 0 for any other expression.
func (a attributes) packets() uint64 {
	if a.find(unix.NFTA_EXPR_NAME).text() != "counter" {
		return 0
	}
	return a.find(unix.NFTA_EXPR_DATA, unix.NFTA_COUNTER_PACKETS).number()
}
