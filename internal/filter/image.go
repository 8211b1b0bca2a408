package filter

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// image is the desired content of the table, in a form that can be compared. It is made of an older one and shares most
// with it: what is made and compared is what changed.
type image struct {
	// of is what it is an image of.
	of     *Desired
	layout layout
	// table is the layout's.
	table *nft.Layout
	// frontends of each address, ordered by protocol and port.
	frontends lb.Map[netip.Addr, *[]frontend]
	// lists and chains that the frontends use, how often, and what they cost.
	lists  lb.Map[*list, int]
	chains lb.Map[chainName, chainUse]
	cost   cost
	// internal has the addresses of the frontends that share a port of a ClusterIP, in order. Its replies can be
	// rewritten to one address only: the first.
	internal lb.Map[clusterPort, *[]netip.Addr]
	// outside are the addresses of frontends that are in no guarded range.
	outside lb.Map[netip.Addr, struct{}]
	// refused are the Services whose frontends are closed, and why.
	refused map[lb.Key]error
	// others are the elements that belong to no frontend, but for addresses of their own sets.
	others nft.Elements
}

// chainName orders the chains of profiles, jump targets first.
type chainName string

// Compare implements lb.Ordered.
func (c chainName) Compare(o chainName) int { return strings.Compare(string(c), string(o)) }

// chainUse is a profile that makes a chain, and how many frontends use that.
type chainUse struct {
	profile profile
	n       int
}

// clusterPort is a port of a ClusterIP.
type clusterPort struct {
	addr     netip.Addr
	protocol string
	port     uint16
}

// Compare implements lb.Ordered.
func (p clusterPort) Compare(o clusterPort) int {
	return cmp.Or(p.addr.Compare(o.addr), strings.Compare(p.protocol, o.protocol), cmp.Compare(p.port, o.port))
}

// blank is an image of nothing.
func blank() *image { return &image{of: &Desired{}} }

// newImage makes the image of a desired filter. It takes what did not change from an older image, nil for none.
func newImage(y *library, d *Desired, old *image) *image {
	if old == nil {
		old = blank()
	}

	// A change of one frontend may open others that are closed.
	shared := len(old.refused) == 0 &&
		old.of.NoLog == d.NoLog &&
		old.of.NoLimits == d.NoLimits &&
		old.of.NoInternal == d.NoInternal

	var img *image
	if shared {
		img = old.with(d, old.changed(y, d, old))
	}

	if !shared || len(img.refused) > 0 || img.cost.beyond() {
		all := blank().changed(y, d, old)
		if img = blank().with(d, all); img.cost.beyond() {
			img.admit()
			for a, list := range all.at {
				resolve(y, *list, old.frontends.Of(a))
			}

			img = blank().with(d, all)
		}
	}

	if img.others = old.others; old.table == nil || !img.outside.Same(old.outside) || !old.of.sameOthers(d) {
		img.others = others(d, img.outside)
	}

	img.layout = layout{log: !d.NoLog, routes: !d.NoRoutes, internal: img.internal.Len() > 0}
	for i, f := range families() {
		if at := slices.IndexFunc(d.Addresses, f.Has); at >= 0 {
			img.layout.answering[i] = d.Addresses[at]
		}
	}

	if img.table = old.table; img.table == nil || old.layout != img.layout {
		img.table = img.layout.table()
	}

	return img
}

// changed are the frontends at addresses where these change, and the Services of those that are closed for what they
// are.
type changed struct {
	at      map[netip.Addr]*[]frontend
	refused map[lb.Key]error
}

// changed returns the frontends at each address where the image has others than are desired. They keep the parities of
// an older image.
func (img *image) changed(y *library, d *Desired, old *image) changed {
	out := changed{map[netip.Addr]*[]frontend{}, map[lb.Key]error{}}
	img.of.Frontends.Changes(d.Frontends, func(a netip.Addr, _, is *[]lb.Frontend, _, has bool) {
		var list []frontend
		if has {
			list = out.frontends(d, *is)
			resolve(y, list, old.frontends.Of(a))
		}

		out.at[a] = &list
	})

	return out
}

// with returns an image of what is desired, with other frontends at some addresses.
func (img *image) with(d *Desired, c changed) *image {
	out, at := *img, c.at
	out.of, out.refused = d, maps.Clone(c.refused)
	u := uses{
		lists:  map[*list]int{},
		chains: map[chainName]chainUse{},
		names:  map[profile][]string{},
		ports:  map[clusterPort][]netip.Addr{},
	}

	for a, list := range at {
		u.count(img.frontends.Of(a), -1)
		u.count(list, 1)
		for i := range *list {
			if fe := &(*list)[i]; fe.refused != nil {
				out.refused[fe.Service] = fe.refused
			}
		}
	}

	out.frontends = img.frontends.With(
		maps.Keys(at),
		func(a netip.Addr) (*[]frontend, bool) { return at[a], len(*at[a]) > 0 },
	)

	out.lists = img.lists.With(maps.Keys(u.lists), func(l *list) (int, bool) {
		n, more := img.lists.Of(l), u.lists[l]
		out.cost.prefixes += (min(n+more, 1) - min(n, 1)) * l.size
		return n + more, n+more > 0
	})

	out.chains = img.chains.With(maps.Keys(u.chains), func(c chainName) (chainUse, bool) {
		n, use := img.chains.Of(c).n, u.chains[c]
		if string(c) == use.profile.rangesChain() {
			out.cost.rules += (min(n+use.n, 1) - min(n, 1)) * use.profile.rules()
		}

		use.n += n
		return use, use.n > 0
	})

	out.internal = img.internal.With(maps.Keys(u.ports), func(p clusterPort) (*[]netip.Addr, bool) {
		all := u.ports[p]
		if before := img.internal.Of(p); before != nil {
			all = append(
				all,
				slices.DeleteFunc(slices.Clone(*before), func(a netip.Addr) bool { return at[a] != nil })...)
		}

		slices.SortFunc(all, netip.Addr.Compare)
		return &all, len(all) > 0
	})

	guarded := lb.IndexOf([]bool{true}, func(bool) []lb.Range { return d.Guarded })
	moved, isOutside := maps.Keys(at), func(a netip.Addr) (v struct{}, has bool) {
		return v, out.frontends.Has(a) &&
			!guarded.Find(a)
	}
	if !slices.Equal(img.of.Guarded, d.Guarded) {
		moved = out.frontends.Keys()
		out.outside = lb.Map[netip.Addr, struct{}]{}
	}

	out.outside = out.outside.With(moved, isOutside)
	return &out
}

// uses counts what frontends use.
type uses struct {
	lists  map[*list]int
	chains map[chainName]chainUse
	names  map[profile][]string
	// ports are those that frontends use which come or go, with the addresses of those that come.
	ports map[clusterPort][]netip.Addr
}

// count counts frontends n times.
func (u *uses) count(list *[]frontend, n int) {
	if list == nil {
		return
	}

	for i := range *list {
		d := &(*list)[i]
		for _, l := range d.lists() {
			if l != nil {
				u.lists[l] += n
			}
		}

		names, known := u.names[d.profile]
		if !known {
			names = d.profile.chainNames()
			u.names[d.profile] = names
		}

		for _, name := range names {
			u.chains[chainName(name)] = chainUse{d.profile, u.chains[chainName(name)].n + n}
		}

		if d.refused == nil && d.ClusterIP.IsValid() && d.ClusterIP.Is4() == d.Address.Is4() {
			p := clusterPort{d.ClusterIP, d.Protocol, d.Port}
			if u.ports[p] = u.ports[p][:len(u.ports[p]):len(u.ports[p])]; n > 0 {
				u.ports[p] = append(u.ports[p], d.Address)
			}
		}
	}
}

// all returns all frontends, in order.
func (img *image) all() iter.Seq[*frontend] {
	return func(yield func(*frontend) bool) {
		for _, list := range img.frontends.All() {
			for i := range *list {
				if !yield(&(*list)[i]) {
					return
				}
			}
		}
	}
}

// serviceAt returns the Service of the frontend at an address that has a key; the zero Key for none.
func (img *image) serviceAt(a netip.Addr, key string) (k lb.Key) {
	if list := img.frontends.Of(a); list != nil {
		for _, d := range *list {
			if d.key() == key {
				return d.Service
			}
		}
	}

	return k
}

// others returns the elements that belong to no frontend, but for addresses of their own sets.
func others(d *Desired, outside lb.Map[netip.Addr, struct{}]) nft.Elements {
	guarded := slices.Clone(d.Guarded)
	for a := range outside.All() {
		guarded = append(guarded, lb.Range{From: a, To: a})
	}

	list := insideLinks(d.PodLinks)
	for _, f := range families() {
		for _, r := range []reason{undeclared, rateLimit} {
			list.Put(f.named(dropsSet), f.noFrontend(r), "")
		}

		f.intervals(&list, guardedSet, guarded)
		f.intervals(&list, resetSet, d.Reset)
		f.intervals(&list, openSet, d.Open)
	}

	return list
}

// intervals adds the family's ranges as elements of an interval set.
func (f *family) intervals(to *nft.Elements, base string, ranges []lb.Range) {
	var list nft.Elements
	for _, r := range ranges {
		if !f.Has(r.From) || !f.Has(r.To) || r.To.Less(r.From) {
			continue
		}

		// The last address of the family has no next one: the interval has no end.
		list.Put(f.named(base), string(r.From.AsSlice()), string(r.To.Next().AsSlice()))
	}

	*to = append(*to, merged(list)...)
}

// merged returns the intervals of a set, and joins those that touch or overlap, as the kernel demands.
func merged(list nft.Elements) (out nft.Elements) {
	slices.SortFunc(list, func(a, b nft.Element) int { return strings.Compare(a.Key, b.Key) })
	for _, e := range list {
		last := len(out) - 1
		switch {
		case last < 0 || out[last].Value != "" && out[last].Value < e.Key:
			out = append(out, e)
		case e.Value == "" || out[last].Value != "" && out[last].Value < e.Value:
			out[last].Value = e.Value
		}
	}

	return out
}
