package nft

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// dump asks for all objects of a type in the table, or with other flags for one, and calls fn with each. It uses a connection of its own: a listing that was given up leaves nothing behind.
func (t Table) dump(typ int, flags uint16, of func(*attributes), fn func(attributes)) error {
	var c Conn
	if err := c.open(); err != nil {
		return err
	}
	var request attributes
	request.about(t, typ, flags, of)
	return errors.Join(c.exchange(request, flags&unix.NLM_F_DUMP == 0, fn), c.Close())
}

// ErrChanged says that transactions, of whichever table, came between again and again while a table was listed.
var ErrChanged = errors.New("the tables changed meanwhile")

// attempts bounds how often a listing is begun that a transaction of any table interrupts.
const attempts = 10

// settled repeats a listing until no transaction interrupts it.
func settled(list func() error) (err error) {
	for range attempts {
		if err = list(); !errors.Is(err, ErrChanged) {
			break
		}
	}
	return err
}

// Counted is an element and how many packets matched it.
type Counted struct {
	Element
	Packets uint64
}

// List returns the elements of a set.
func (t Table) List(s Set) (list []Counted, err error) {
	ends := make(map[string]bool)
	of := func(a *attributes) { a.putText(unix.NFTA_SET_ELEM_LIST_SET, s.Name) }
	err = settled(func() error {
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

// pairEnds gives each interval the end that is next behind it.
func pairEnds(list []Counted, ends map[string]bool) {
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
	slices.SortFunc(list, func(a, b Counted) int { return strings.Compare(a.Key, b.Key) })
}

// decodeElement reads an element.
func decodeElement(e attributes) (c Counted) {
	c.Key = string(e.find(unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE))
	c.Value = string(e.find(unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE))
	if chain := e.find(unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN); chain != nil {
		c.Value = chain.text()
	}
	c.Packets = e.find(unix.NFTA_SET_ELEM_EXPR).packets()
	return c
}

// packets reads an expression, if it is a counter.
func (a attributes) packets() uint64 {
	if a.find(unix.NFTA_EXPR_NAME).text() != "counter" {
		return 0
	}
	return a.find(unix.NFTA_EXPR_DATA, unix.NFTA_COUNTER_PACKETS).number()
}
