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

// image is the desired content of the table, in a form that is cheap to compare. A new image shares the unchanged parts
// of an older one, so only what has changed is made and compared.
type image struct {
	desired *Desired
	layout  layout
	// table is the nft form of layout.
	table *nft.Layout
	// frontends are the frontends of each address, ordered by protocol and port.
	frontends lb.Map[netip.Addr, *[]frontend]
	// lists counts for each list the frontends that use it.
	lists lb.Map[*list, int]
	// chains are the chains of the profiles of all frontends.
	chains lb.Map[chainName, chainUse]
	// cost is the cost of lists and chains.
	cost cost
	// internal has the addresses of the frontends that share a port of a ClusterIP, in order. The source of a reply
	// from that port can be rewritten to one address only: the first.
	internal lb.Map[clusterPort, *[]netip.Addr]
	// outside are the addresses of frontends that are in no guarded range.
	outside lb.Map[netip.Addr, struct{}]
	// refused maps the Services whose frontends are closed to the reason.
	refused map[lb.Key]error
	// common are the elements that belong to no frontend, without the addresses of Pings and Relayed.
	common nft.Elements
}

// chainName is the name of a profile's chain. The order of names has jump targets first.
type chainName string

// Compare implements lb.Ordered.
func (c chainName) Compare(o chainName) int {
	return strings.Compare(string(c), string(o))
}

// chainUse is the profile of a chain, and the number of frontends that use the chain.
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
	return cmp.Or(
		p.addr.Compare(o.addr),
		strings.Compare(p.protocol, o.protocol),
		cmp.Compare(p.port, o.port),
	)
}

// emptyImage returns an image without frontends.
func emptyImage() *image {
	return &image{desired: &Desired{}}
}

// newImage returns the image of a desired filter. It shares the unchanged parts of an older image; nil for none.
func newImage(lib *library, d *Desired, old *image) *image {
	if old == nil {
		old = emptyImage()
	}

	img := newFrontends(lib, d, old)
	img.common = old.common
	sameCommon := old.table != nil && img.outside.Same(old.outside) && old.desired.sameCommon(d)
	if !sameCommon {
		img.common = commonElements(d, img.outside)
	}

	img.layout = layout{
		log:      !d.NoLog,
		routes:   !d.NoRoutes,
		internal: img.internal.Len() > 0,
	}
	for i, f := range families() {
		own := slices.IndexFunc(d.Addresses, f.Has)
		if own >= 0 {
			img.layout.answering[i] = d.Addresses[own]
		}
	}

	img.table = old.table
	if img.table == nil || old.layout != img.layout {
		img.table = img.layout.table()
	}

	return img
}

// newFrontends returns an image of the desired frontends. It updates the older image if no frontend of either is
// closed: otherwise the change of one frontend may open others.
func newFrontends(lib *library, d *Desired, old *image) *image {
	canUpdate := len(old.refused) == 0 &&
		old.desired.NoLog == d.NoLog &&
		old.desired.NoLimits == d.NoLimits &&
		old.desired.NoInternal == d.NoInternal
	if canUpdate {
		img := old.with(d, old.changesTo(lib, d, old))
		if len(img.refused) == 0 && !img.cost.exceedsMax() {
			return img
		}
	}

	all := emptyImage().changesTo(lib, d, old)
	img := emptyImage().with(d, all)
	if !img.cost.exceedsMax() {
		return img
	}

	img.closeExpensive()
	for a, list := range all.byAddress {
		resolve(lib, *list, old.frontends.Of(a))
	}

	return emptyImage().with(d, all)
}

// frontendChanges are the new frontends of the addresses at which they change.
type frontendChanges struct {
	byAddress map[netip.Addr]*[]frontend
	// refused maps the Services of invalid frontends to the reason.
	refused map[lb.Key]error
}

// changesTo returns the changes from the image's frontends to the desired ones. They keep the parities of an older
// image.
func (img *image) changesTo(lib *library, d *Desired, old *image) frontendChanges {
	out := frontendChanges{
		byAddress: map[netip.Addr]*[]frontend{},
		refused:   map[lb.Key]error{},
	}
	img.desired.Frontends.Changes(d.Frontends, func(a netip.Addr, _, want *[]lb.Frontend, _, isWanted bool) {
		var list []frontend
		if isWanted {
			list = out.frontends(d, *want)
			resolve(lib, list, old.frontends.Of(a))
		}

		out.byAddress[a] = &list
	})

	return out
}

// with returns a copy of the image for another Desired, with changed frontends.
func (img *image) with(d *Desired, c frontendChanges) *image {
	out := *img
	out.desired = d
	out.refused = maps.Clone(c.refused)
	for _, list := range c.byAddress {
		for i := range *list {
			fe := &(*list)[i]
			if fe.refused != nil {
				out.refused[fe.Service] = fe.refused
			}
		}
	}

	out.frontends = img.frontends.With(maps.Keys(c.byAddress), func(a netip.Addr) (*[]frontend, bool) {
		list := c.byAddress[a]
		return list, len(*list) > 0
	})

	out.updateUses(img, c)
	out.updateOutside(img, c)
	return &out
}

// updateUses updates the lists, chains and ports that the frontends use, and their cost, from an older image.
func (img *image) updateUses(old *image, c frontendChanges) {
	u := uses{
		lists:  map[*list]int{},
		chains: map[chainName]chainUse{},
		names:  map[profile][]string{},
		ports:  map[clusterPort][]netip.Addr{},
	}
	for a, list := range c.byAddress {
		u.count(old.frontends.Of(a), -1)
		u.count(list, 1)
	}

	img.lists = old.lists.With(maps.Keys(u.lists), func(l *list) (int, bool) {
		before := old.lists.Of(l)
		after := before + u.lists[l]
		img.cost.prefixes += (min(after, 1) - min(before, 1)) * l.size
		return after, after > 0
	})

	img.chains = old.chains.With(maps.Keys(u.chains), func(c chainName) (chainUse, bool) {
		before := old.chains.Of(c).n
		use := u.chains[c]
		use.n += before
		if string(c) == use.profile.rangesChain() {
			img.cost.rules += (min(use.n, 1) - min(before, 1)) * use.profile.rules()
		}

		return use, use.n > 0
	})

	img.internal = old.internal.With(maps.Keys(u.ports), func(p clusterPort) (*[]netip.Addr, bool) {
		all := u.ports[p]
		before := old.internal.Of(p)
		if before != nil {
			isChanged := func(a netip.Addr) bool { return c.byAddress[a] != nil }
			unchanged := slices.DeleteFunc(slices.Clone(*before), isChanged)
			all = append(all, unchanged...)
		}

		slices.SortFunc(all, netip.Addr.Compare)
		return &all, len(all) > 0
	})
}

// updateOutside updates the addresses outside of guarded ranges from an older image. If the ranges have changed, it
// tests all addresses.
func (img *image) updateOutside(old *image, c frontendChanges) {
	rangesOf := func(bool) []lb.Range { return img.desired.Guarded }
	guarded := lb.IndexOf([]bool{true}, rangesOf)
	isOutside := func(a netip.Addr) (value struct{}, ok bool) {
		return value, img.frontends.Has(a) && !guarded.Find(a)
	}

	if slices.Equal(old.desired.Guarded, img.desired.Guarded) {
		img.outside = old.outside.With(maps.Keys(c.byAddress), isOutside)
		return
	}

	img.outside = lb.Map[netip.Addr, struct{}]{}.With(img.frontends.Keys(), isOutside)
}

// uses counts how often frontends use a list or a chain. A change of frontends makes the counts differences.
type uses struct {
	lists  map[*list]int
	chains map[chainName]chainUse
	// names caches the names of a profile's chains.
	names map[profile][]string
	// ports has every port that an old or a new frontend uses, with the addresses of the new frontends.
	ports map[clusterPort][]netip.Addr
}

// count adds n for each frontend of an address: 1 for the new frontends, and -1 for the old ones.
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

		u.countChains(d.profile, n)
		u.addPort(d, n)
	}
}

// countChains adds n to the counts of a profile's chains.
func (u *uses) countChains(p profile, n int) {
	names, ok := u.names[p]
	if !ok {
		names = p.chainNames()
		u.names[p] = names
	}

	for _, name := range names {
		key := chainName(name)
		u.chains[key] = chainUse{profile: p, n: u.chains[key].n + n}
	}
}

// addPort adds the port of the ClusterIP to which internal traffic is redirected, with the address of a new frontend.
func (u *uses) addPort(d *frontend, n int) {
	isSameFamily := d.ClusterIP.Is4() == d.Address.Is4()
	redirects := d.refused == nil && d.ClusterIP.IsValid() && isSameFamily
	if !redirects {
		return
	}

	port := clusterPort{
		addr:     d.ClusterIP,
		protocol: d.Protocol,
		port:     d.Port,
	}
	addresses := u.ports[port]
	if n > 0 {
		addresses = append(addresses, d.Address)
	}

	u.ports[port] = addresses // an old frontend adds the port too
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

// serviceAt returns the Service of the frontend with an address and a key; the zero Key for none.
func (img *image) serviceAt(a netip.Addr, key string) lb.Key {
	list := img.frontends.Of(a)
	if list == nil {
		return lb.Key{}
	}

	for _, d := range *list {
		if d.key() == key {
			return d.Service
		}
	}

	return lb.Key{}
}

// commonElements returns the elements that belong to no frontend, without the addresses of Pings and Relayed.
func commonElements(d *Desired, outside lb.Map[netip.Addr, struct{}]) nft.Elements {
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
		isOfFamily := f.Has(r.From) && f.Has(r.To)
		if !isOfFamily || r.To.Less(r.From) {
			continue
		}

		// After the last address of the family, Next is the zero Addr, and the interval has no end.
		list.Put(
			f.named(base),
			string(r.From.AsSlice()),
			string(r.To.Next().AsSlice()),
		)
	}

	*to = append(*to, list.Merged()...)
}
