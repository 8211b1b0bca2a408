package filter

import (
	"cmp"
	"hash/fnv"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// list is a list of source prefixes of one family, not empty. Its content does not change, and it has a number in the
// table, so that it enters the kernel once for all frontends that have the same list.
type list struct {
	ipv6   bool
	number uint32
	// given are the prefixes as they were passed.
	given []netip.Prefix
	// keys are the beginnings of its elements' keys, ordered; size is their number.
	keys string
	size int
	// lengths of its prefixes, as a profile has them.
	lengths string
}

// library has the lists by number. A list's number comes of its content, so that the next process gives it the same,
// and is the next one that is free where another list has it. Equal lists are one list, unless a list of the number
// before was forgotten.
type library struct {
	lists map[uint32]*list
	// kept is how many lists there were after the last cleaning.
	kept int
	// recent are the lists that were asked for last, of sources that are allowed and denied: neighbours mostly have the
	// same.
	recent [2]*list
}

// list returns the list of some prefixes; nil if it is empty. The recent one and the one before are looked at first: a
// list may be long, and belong to hundreds of frontends.
func (y *library) list(ipv6 bool, given []netip.Prefix, recent **list, before *list) *list {
	if len(given) == 0 {
		return nil
	}

	for _, l := range [...]*list{*recent, before} {
		if l != nil && l.ipv6 == ipv6 && (lb.Same(l.given, given) || slices.Equal(l.given, given)) {
			*recent = l
			return l
		}
	}

	*recent = y.find(ipv6, given)
	return *recent
}

// find returns the list of some prefixes by their content; nil if it is empty.
func (y *library) find(ipv6 bool, given []netip.Prefix) *list {
	l := &list{ipv6: ipv6, given: given}
	var keys []string
	var lengths []byte
	for _, p := range familyOf(ipv6).normal(given) {
		lengths = append(lengths, byte(p.Bits()))
		keys = append(keys, string(p.Addr().AsSlice())+string(nft.Native(uint32(p.Bits()))))
	}

	if len(keys) == 0 {
		return nil
	}

	slices.Sort(keys)
	keys = slices.Compact(keys)
	slices.SortFunc(lengths, func(a, b byte) int { return cmp.Compare(b, a) })
	l.keys, l.size, l.lengths = strings.Join(keys, ""), len(keys), string(slices.Compact(lengths))
	if y.lists == nil {
		y.lists = make(map[uint32]*list)
	}

	h := fnv.New32a()
	_, _ = io.WriteString(h, familyOf(ipv6).Suffix+l.keys) // a hash has no errors
	for l.number = h.Sum32(); y.lists[l.number] != nil; l.number++ {
		if known := y.lists[l.number]; known.ipv6 == ipv6 && known.keys == l.keys {
			return known
		}
	}

	y.lists[l.number] = l
	return l
}

// clean forgets the lists that no frontend of an image has, now and then: one that is closed may open with what it has.
func (y *library) clean(img *image) {
	const some = 1000
	if len(y.lists) <= 2*y.kept+some {
		return
	}

	used := map[*list]bool{}
	for d := range img.all() {
		used[d.allow], used[d.deny] = true, true
	}

	maps.DeleteFunc(y.lists, func(_ uint32, l *list) bool { return !used[l] })
	y.kept, y.recent = len(y.lists), [2]*list{}
}

// numberSize is the size of a list's number in a key.
const numberSize = 4

// normal returns the masked prefixes of the family.
func (f *family) normal(list []netip.Prefix) (out []netip.Prefix) {
	for _, p := range list {
		const mapped = 96 // ::ffff:0:0/96 (RFC 4291 section 2.5.5.2)
		if p.Addr().Is4In6() && p.Bits() >= mapped {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
		}

		if p = p.Masked(); p.IsValid() && f.Has(p.Addr()) && !p.Addr().Is4In6() {
			out = append(out, p)
		}
	}

	return out
}

// elements adds the elements of the list.
func (l *list) elements(to *nft.Elements) {
	set, number := familyOf(l.ipv6).named(sourcesSet), string(nft.Native(l.number))
	for i, end := 0, len(l.keys)/l.size; i < len(l.keys); i += end {
		to.Put(set, l.keys[i:i+end]+number, "")
	}
}

// Compare implements lb.Ordered.
func (l *list) Compare(o *list) int { return cmp.Compare(l.number, o.number) }
