package filter

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// image is the desired content of the table, in a form that can be compared.
type image struct {
	layout layout
	// table is the layout's.
	table *nft.Layout
	// frontends in order.
	frontends []frontend
	// refused are the Services whose frontends are closed, and why.
	refused map[lb.Key]error
	// chainProfiles is the result of chains, used of lists.
	chainProfiles map[string]profile
	used          map[*list]bool
	// others are the elements that belong to no frontend, ordered.
	others []nft.SetElement
}

// newImage makes the image of a desired filter. It takes lists and parities from an older image, nil for none.
func newImage(y *library, d *Desired, old *image) *image {
	img := &image{layout: layout{log: !d.NoLog}, frontends: make([]frontend, 0, len(d.Frontends)), refused: make(map[lb.Key]error)}
	for i, f := range families() {
		if at := slices.IndexFunc(d.Addresses, f.Has); at >= 0 {
			img.layout.answering[i] = d.Addresses[at]
		}
	}
	for _, from := range d.Frontends {
		to, err := newFrontend(from)
		if err != nil {
			img.refused[from.Service] = err // nobody can send packets there
			continue
		}
		img.frontends = append(img.frontends, to)
	}
	img.order()
	img.resolve(y, old)
	if img.beyond() {
		img.admit()
		img.resolve(y, old)
	}
	img.markInternal()
	img.others = others(d, img.frontends)
	if old != nil && old.layout == img.layout {
		img.table = old.table
	} else {
		img.table = img.layout.table()
	}
	return img
}

// order orders the frontends. If two have all in common that a packet shows, nobody knows whose lists hold, and the first
// stays to be closed.
func (img *image) order() {
	compare := func(a, b frontend) int { return a.compare(&b) }
	if !slices.IsSortedFunc(img.frontends, compare) {
		slices.SortStableFunc(img.frontends, compare)
	}
	distinct := img.frontends[:0]
	for _, fe := range img.frontends {
		n := len(distinct)
		if n > 0 && distinct[n-1].compare(&fe) == 0 {
			err := fmt.Errorf("two frontends at %s port %d of %s", fe.Protocol, fe.Port, fe.Address)
			distinct[n-1].refused, img.refused[fe.Service] = err, err
			continue
		}
		fe.first = n == 0 || distinct[n-1].Address != fe.Address
		distinct = append(distinct, fe)
	}
	img.frontends = distinct
}

// resolve finds the lists, profiles and parities of the frontends.
func (img *image) resolve(y *library, old *image) {
	if old == nil {
		old = &image{}
	}
	none := &frontend{}
	neighbour := none
	eachPair(old.frontends, img.frontends, func(a, b *frontend) {
		switch {
		case b == nil:
			return
		case a == nil:
			b.resolve(y, neighbour, none)
		default:
			b.resolve(y, neighbour, a)
			b.profile.odd = a.profile.odd == a.sameLists(b)
		}
		if neighbour = b; b.refused != nil {
			img.refused[b.Service] = b.refused
		}
	})
}

// markInternal marks the frontends whose internal traffic is redirected to the ClusterIP. Replies of a port of a ClusterIP
// can be rewritten to one address only: the first.
func (img *image) markInternal() {
	type port struct {
		addr     netip.Addr
		protocol string
		port     uint16
	}
	taken := make(map[port]bool, len(img.frontends))
	for i := range img.frontends {
		d := &img.frontends[i]
		p := port{d.ClusterIP, d.Protocol, d.Port}
		if d.refused == nil && d.ClusterIP.IsValid() && d.ClusterIP.Is4() == d.Address.Is4() && !taken[p] {
			taken[p], d.internal, img.layout.internal = true, true, true
		}
	}
}

// others returns the elements that belong to no frontend.
func others(d *Desired, frontends []frontend) []nft.SetElement {
	guarded := slices.Clone(d.Guarded)
	for i := range frontends {
		if fe := &frontends[i]; fe.first && !within(d.Guarded, fe.Address) {
			guarded = append(guarded, lb.Range{From: fe.Address, To: fe.Address})
		}
	}
	list := insideLinks(nil, d.PodLinks)
	for _, f := range families() {
		for _, r := range []reason{undeclared, rateLimit} {
			list = append(list, element(f.named(dropsSet), f.noFrontend(r), ""))
		}
		list = f.intervals(list, guardedSet, guarded)
		list = f.intervals(list, resetSet, d.Reset)
		list = f.intervals(list, openSet, d.Open)
		list = f.addresses(list, pingsSet, d.Pings)
		list = f.addresses(list, relayedSet, d.Relayed)
	}
	slices.SortFunc(list, compareElements)
	return slices.Compact(list)
}

func element(set, key, value string) nft.SetElement {
	return nft.SetElement{Set: set, Element: nft.Element{Key: key, Value: value}}
}

func compareElements(a, b nft.SetElement) int {
	return cmp.Or(strings.Compare(a.Set, b.Set), strings.Compare(a.Key, b.Key), strings.Compare(a.Value, b.Value))
}

// within reports whether an address is in one of the ranges, which are disjoint and ordered.
func within(ranges []lb.Range, a netip.Addr) bool {
	behind, _ := slices.BinarySearchFunc(ranges, a, func(r lb.Range, a netip.Addr) int {
		if a.Less(r.From) {
			return 1
		}
		return -1
	})
	return behind > 0 && ranges[behind-1].Contains(a)
}

// addresses appends the family's addresses as elements of a set.
func (f *family) addresses(list []nft.SetElement, base string, addresses []netip.Addr) []nft.SetElement {
	for _, a := range addresses {
		if a = a.Unmap(); f.Has(a) {
			list = append(list, element(f.named(base), string(a.AsSlice()), ""))
		}
	}
	return list
}

// intervals appends the family's ranges as elements of an interval set. It merges ranges that touch or overlap, as the
// kernel demands.
func (f *family) intervals(list []nft.SetElement, base string, ranges []lb.Range) []nft.SetElement {
	ranges = slices.DeleteFunc(slices.Clone(ranges), func(r lb.Range) bool { return !f.Has(r.From) || !f.Has(r.To) || r.To.Less(r.From) })
	slices.SortFunc(ranges, func(a, b lb.Range) int { return a.From.Compare(b.From) })
	for i := 0; i < len(ranges); {
		run := ranges[i]
		for i++; i < len(ranges) && (!run.To.Less(ranges[i].From) || run.To.Next() == ranges[i].From); i++ {
			if run.To.Less(ranges[i].To) {
				run.To = ranges[i].To
			}
		}
		// The last address of the family has no next one.
		var end string
		if next := run.To.Next(); next.IsValid() {
			end = string(next.AsSlice())
		}
		list = append(list, element(f.named(base), string(run.From.AsSlice()), end))
	}
	return list
}
