package nft

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// dump requests the objects of a type in the table, and calls fn for each. Without NLM_F_DUMP it requests a single
// object. The function selector adds attributes to the request; it may be nil. Each dump opens a socket of its own,
// so an aborted listing leaves no replies for the next.
func (t Table) dump(typ int, flags uint16, selector func(*attributes), fn func(attributes)) error {
	var c Conn
	if err := c.open(); err != nil {
		return err
	}

	var request attributes
	request.tableMessage(t, typ, flags, selector)
	isSingle := flags&unix.NLM_F_DUMP == 0
	err := c.exchange(request, isSingle, fn)
	return errors.Join(err, c.Close())
}

// ErrChanged means that transactions interrupted every attempt to list a table. They may be about any table.
var ErrChanged = errors.New("transactions kept interrupting the listing")

// attempts limits how often an interrupted listing starts again.
const attempts = 10

// retryChanged repeats a listing until no transaction interrupts it, at most attempts times.
func retryChanged(list func() error) (err error) {
	for range attempts {
		err = list()
		if !errors.Is(err, ErrChanged) {
			break
		}
	}

	return err
}

// addElements lists a set of the table and adds its elements to the content. The kernel lists an interval as two
// elements: its start, and its end with a flag.
func (c *Content) addElements(t Table, s Set) error {
	started := time.Now()
	before := len(c.Elements)
	ends := make(map[string]bool) // the keys of the ends of intervals
	reset := func() {             // an interrupted listing starts again
		c.Elements = c.Elements[:before]
		clear(ends)
	}

	err := t.eachElement(s.Name, reset, func(a attributes) {
		e, expires := decodeElement(s.Name, a)
		flags := a.find(unix.NFTA_SET_ELEM_FLAGS).number()
		isEnd := flags&unix.NFT_SET_ELEM_INTERVAL_END != 0
		if isEnd {
			ends[e.Key] = true
			return
		}

		c.Elements = append(c.Elements, e)
		if expires > 0 {
			c.Ends[Element{Set: e.Set, Key: e.Key}] = started.Add(expires)
		}
	})

	if s.Intervals() {
		pairEnds(c.Elements[before:], ends)
	}

	return err
}

// Counters calls fn for each element of a set that packets have matched, with the number of packets. If a transaction
// interrupts the listing, fn may be called for an element again.
func (t Table) Counters(set string, fn func(key string, packets uint64)) error {
	return t.eachElement(set, func() {}, func(e attributes) {
		n := e.find(unix.NFTA_SET_ELEM_EXPR).packets()
		if n > 0 {
			fn(string(e.find(unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)), n)
		}
	})
}

// eachElement calls fn for each element of a set. It calls reset at the start of every attempt to list the set.
func (t Table) eachElement(set string, reset func(), fn func(attributes)) error {
	ofSet := func(a *attributes) { a.putText(unix.NFTA_SET_ELEM_LIST_SET, set) }

	err := retryChanged(func() error {
		reset()
		return t.dump(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, ofSet, func(a attributes) {
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

// pairEnds sets the Value of each interval to the nearest end after its start. The kernel lists the two separately.
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

// decodeElement decodes an element of a set, and returns the time until it expires; 0 if it never expires.
func decodeElement(set string, a attributes) (e Element, expires time.Duration) {
	e = Element{
		Set:   set,
		Key:   string(a.find(unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)),
		Value: string(a.find(unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE)),
	}

	chain := a.find(unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN)
	if chain != nil {
		e.Value = chain.text()
	}

	milliseconds := a.find(unix.NFTA_SET_ELEM_EXPIRATION).number()
	return e, time.Duration(milliseconds) * time.Millisecond
}

// packets returns the packet count of a counter expression; 0 for any other expression.
func (a attributes) packets() uint64 {
	if a.find(unix.NFTA_EXPR_NAME).text() != "counter" {
		return 0
	}
	return a.find(unix.NFTA_EXPR_DATA, unix.NFTA_COUNTER_PACKETS).number()
}
