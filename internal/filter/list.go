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

// list is a list of source prefixes of one family. It is not empty, and its content does not change. All frontends with
// the same list refer to its number, so the list enters the kernel once.
type list struct {
	ipv6   bool
	number uint32
	// given are the prefixes in the form in which they were passed.
	given []netip.Prefix
	// keys joins the keys of its elements without the number, in order. They all have the same size.
	keys string
	// size counts the keys.
	size int
	// lengths are the lengths of its prefixes, an octet each, the longest first.
	lengths string
}

// library holds the lists by number. The number is a hash of the content, so the next process gives a list the same
// number. If another list has that number, the list gets the next free one. Equal lists are one list, unless clean has
// deleted a list of a number before.
type library struct {
	lists map[uint32]*list
	// sizeAfterClean is the number of lists after the last clean.
	sizeAfterClean int
	// recent are the results of the last look-ups, of allowed and of denied sources. Neighbours usually have the same
	// lists.
	recent [2]*list
}

// list returns the list of some prefixes; nil if it is empty. It compares them with the recent list and the frontend's
// list before: a list may be long and belong to hundreds of frontends.
func (lib *library) list(ipv6 bool, given []netip.Prefix, recent **list, before *list) *list {
	if len(given) == 0 {
		return nil
	}

	for _, l := range [...]*list{*recent, before} {
		if l != nil && l.isOf(ipv6, given) {
			*recent = l
			return l
		}
	}

	*recent = lib.find(ipv6, given)
	return *recent
}

// isOf reports whether the list was made of these prefixes.
func (l *list) isOf(ipv6 bool, given []netip.Prefix) bool {
	isEqual := lb.Same(l.given, given) || slices.Equal(l.given, given)
	return isEqual && l.ipv6 == ipv6
}

// find returns the list of some prefixes by their content; nil if it is empty.
func (lib *library) find(ipv6 bool, given []netip.Prefix) *list {
	l := newList(ipv6, given)
	if l == nil {
		return nil
	}

	if lib.lists == nil {
		lib.lists = make(map[uint32]*list)
	}

	l.number = l.hash()
	for {
		known := lib.lists[l.number]
		if known == nil {
			break
		}

		if known.ipv6 == ipv6 && known.keys == l.keys {
			return known
		}

		l.number++
	}

	lib.lists[l.number] = l
	return l
}

// newList returns a list of some prefixes without a number; nil if it is empty.
func newList(ipv6 bool, given []netip.Prefix) *list {
	var keys []string
	var lengths []byte
	for _, p := range familyOf(ipv6).normal(given) {
		length := nft.Native(uint32(p.Bits()))
		keys = append(keys, string(p.Addr().AsSlice())+string(length))
		lengths = append(lengths, byte(p.Bits()))
	}

	if len(keys) == 0 {
		return nil
	}

	slices.Sort(keys)
	keys = slices.Compact(keys)
	slices.SortFunc(lengths, func(a, b byte) int { return cmp.Compare(b, a) })
	return &list{
		ipv6:    ipv6,
		given:   given,
		keys:    strings.Join(keys, ""),
		size:    len(keys),
		lengths: string(slices.Compact(lengths)),
	}
}

// hash returns the hash of the content.
func (l *list) hash() uint32 {
	h := fnv.New32a()
	_, _ = io.WriteString(h, familyOf(l.ipv6).Suffix+l.keys) // a hash has no errors
	return h.Sum32()
}

// clean deletes the lists that no frontend of an image has, when their number has doubled. The lists of a closed
// frontend stay, because it may be opened.
func (lib *library) clean(img *image) {
	const slack = 1000
	if len(lib.lists) <= 2*lib.sizeAfterClean+slack {
		return
	}

	used := map[*list]bool{}
	for d := range img.all() {
		used[d.allow], used[d.deny] = true, true
	}

	maps.DeleteFunc(lib.lists, func(_ uint32, l *list) bool { return !used[l] })
	lib.sizeAfterClean = len(lib.lists)
	lib.recent = [2]*list{}
}

// numberSize is the size of a list's number in a key, in bytes.
const numberSize = 4

// normal returns the prefixes of the family, masked. IPv4-mapped IPv6 prefixes count as IPv4.
func (f *family) normal(list []netip.Prefix) (out []netip.Prefix) {
	for _, p := range list {
		const mapped = 96 // ::ffff:0:0/96 (RFC 4291 section 2.5.5.2)
		if p.Addr().Is4In6() && p.Bits() >= mapped {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
		}

		p = p.Masked()
		if p.IsValid() && f.Has(p.Addr()) && !p.Addr().Is4In6() {
			out = append(out, p)
		}
	}

	return out
}

// elements adds the elements of the list.
func (l *list) elements(to *nft.Elements) {
	set := familyOf(l.ipv6).named(sourcesSet)
	number := string(nft.Native(l.number))
	keySize := len(l.keys) / l.size
	for i := 0; i < len(l.keys); i += keySize {
		to.Put(set, l.keys[i:i+keySize]+number, "")
	}
}

// Compare implements lb.Ordered.
func (l *list) Compare(o *list) int {
	return cmp.Compare(l.number, o.number)
}
