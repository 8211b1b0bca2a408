package filter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// The kernel applies a transaction as a whole, so that one list which it refuses would keep all others from being in
// force. It names what it refuses, and takes the transaction without that. Lists are written last and in fair order, so that
// those are refused for which memory does not suffice.

// maxPrefixes bounds the prefixes in the table, each list counted once: 250,000 take the kernel some 25 MiB, and half a
// second of one core for the whole table.
const maxPrefixes = 250_000

// maxRules bounds the rules that look up sources: a profile has one for each length of a prefix in its lists. For the kernel the
// work is quadratic in rules, and these take it less than a second.
const maxRules = 10_000

// refusedBy returns the lists of an image that the kernel refused; nil if it refused anything else.
func (img *image) refusedBy(r *nft.Refusal) map[*list]error {
	if len(r.Elements) == 0 {
		return nil
	}
	named := make(map[string]error)
	for _, some := range r.Elements {
		key := some.Elements[0].Key
		named[some.Set+key[max(0, len(key)-numberSize):]] = r.Err
	}
	used, out := lists{}, make(map[*list]error)
	for i := range img.frontends {
		used.add(&img.frontends[i])
	}
	for l := range used {
		if name := familyOf(l.ipv6).named(sourcesSet) + string(nft.Native(l.number)); named[name] != nil {
			out[l] = named[name]
		}
	}
	if len(out) < len(named) {
		return nil
	}
	return out
}

// beyond returns the refused lists, and those that would be beyond maxPrefixes.
func (img *image) beyond(refused map[*list]error) map[*list]error {
	all, out, n := lists{}, make(map[*list]error), 0
	maps.Copy(out, refused)
	for i := range img.frontends {
		all.add(&img.frontends[i])
	}
	for _, l := range img.fair(all) {
		if n+l.size > maxPrefixes {
			out[l] = fmt.Errorf("its list of %d prefixes is beyond the bound of %d for all lists of a node", l.size, maxPrefixes)
		} else {
			n += l.size
		}
	}
	return out
}

// fair returns lists in the order in which they are admitted.
func (img *image) fair(of lists) []*list {
	if len(of) < 2 {
		return slices.Collect(maps.Keys(of)) // as mostly: costs nothing
	}
	rank := rankOf(img, (*frontend).given, func(l *list) int { return l.size })
	return slices.SortedFunc(maps.Keys(of), func(a, b *list) int {
		return cmp.Or(cmp.Compare(rank[a], rank[b]), cmp.Compare(a.size, b.size), strings.Compare(a.keys, b.keys))
	})
}

// given are the lists of a frontend, whether it uses them or not.
func (d *frontend) given() []*list {
	return slices.DeleteFunc([]*list{d.allow, d.deny}, func(l *list) bool { return l == nil })
}

// even is the profile of a frontend as one of a list.
func (d *frontend) even() []profile { return []profile{d.profile.even()} }

// rankOf ranks what frontends have: what belongs to a namespace that has little in all comes first, so that no tenant has the
// Services of another closed.
func rankOf[K comparable](img *image, of func(*frontend) []K, size func(K) int) map[K]int {
	type use struct {
		namespace string
		what      K
	}
	uses, total, rank := make(map[use]bool), make(map[string]int), make(map[K]int)
	for i := range img.frontends {
		fe := &img.frontends[i]
		for _, k := range of(fe) {
			if u := (use{fe.Service.Namespace, k}); !uses[u] {
				uses[u] = true
				total[u.namespace] += size(k)
			}
		}
	}
	for u := range uses {
		if n, known := rank[u.what]; !known || total[u.namespace] < n {
			rank[u.what] = total[u.namespace]
		}
	}
	return rank
}

// rules counts the rules of the profiles that the frontends need.
func (img *image) rules() (n int) {
	counted, before := make(map[profile]bool), profile{}
	for i := range img.frontends {
		if p := img.frontends[i].profile.even(); p != before && !counted[p] {
			counted[p] = true
			n += p.rules()
		}
		before = img.frontends[i].profile.even()
	}
	return n
}

// beyondRules returns the profiles that would be beyond maxRules.
func (img *image) beyondRules() map[profile]error {
	rank := rankOf(img, (*frontend).even, profile.rules)
	ordered := slices.SortedFunc(maps.Keys(rank), func(a, b profile) int {
		return cmp.Or(cmp.Compare(rank[a], rank[b]), cmp.Compare(a.rules(), b.rules()), strings.Compare(a.rangesChain(), b.rangesChain()))
	})
	out, n := make(map[profile]error), 0
	for _, p := range ordered {
		if n+p.rules() > maxRules {
			out[p] = fmt.Errorf("its lists have prefixes of %d lengths, and the bound is %d for all combinations of lengths and limits on a node", p.rules(), maxRules)
		} else {
			n += p.rules()
		}
	}
	return out
}
