package nft

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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

// CountedElement is an element, the number of packets that matched it, and the time until it expires, 0 if it never does.
type CountedElement struct {
	Element
	Packets uint64
	Expires time.Duration
}

// List returns the elements of a set.
func (t Table) List(s Set) (list []CountedElement, err error) {
	ends := make(map[string]bool)
	of := func(a *attributes) { a.putText(unix.NFTA_SET_ELEM_LIST_SET, s.Name) }
	err = retryChanged(func() error {
		list = nil
		clear(ends)
		return t.dump(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, of, func(a attributes) {
			for e := range a.find(unix.NFTA_SET_ELEM_LIST_ELEMENTS).each(unix.NFTA_LIST_ELEM) {
				if e.find(unix.NFTA_SET_ELEM_FLAGS).number()&unix.NFT_SET_ELEM_INTERVAL_END != 0 {
					ends[string(e.find(unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE))] = true
				} else {
					list = append(list, decodeElement(e))
				}
			}
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", s.Name, err)
	}
	if s.Intervals() {
		pairEnds(list, ends)
	}
	return list, nil
}

// pairEnds assigns to each interval the nearest end after its start.
func pairEnds(list []CountedElement, ends map[string]bool) {
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
	slices.SortFunc(list, func(a, b CountedElement) int { return strings.Compare(a.Key, b.Key) })
}

// decodeElement reads an element.
func decodeElement(e attributes) (c CountedElement) {
	c.Key = string(e.find(unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE))
	c.Value = string(e.find(unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE))
	if chain := e.find(unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN); chain != nil {
		c.Value = chain.text()
	}
	c.Packets = e.find(unix.NFTA_SET_ELEM_EXPR).packets()
	c.Expires = time.Duration(e.find(unix.NFTA_SET_ELEM_EXPIRATION).number()) * time.Millisecond
	return c
}

// packets returns the packets of a counter expression, 0 for any other expression.
func (a attributes) packets() uint64 {
	if a.find(unix.NFTA_EXPR_NAME).text() != "counter" {
		return 0
	}
	return a.find(unix.NFTA_EXPR_DATA, unix.NFTA_COUNTER_PACKETS).number()
}
