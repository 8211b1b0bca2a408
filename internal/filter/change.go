package filter

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// Permanent implements nft.Image.
func (img *image) Permanent() *nft.Layout { return img.table }

// From implements nft.Image. It encodes only the elements that may differ.
func (img *image) From(old *image) nft.Change {
	if old == nil {
		old = emptyImage()
	}

	var e elementChange
	e.addFrontends(old, img)
	e.addLists(old, img)
	e.addInternal(old, img)
	e.addAddresses(pingsSet, old.desired.Pings, img.desired.Pings)
	e.addAddresses(relayedSet, old.desired.Relayed, img.desired.Relayed)
	if !lb.Same(old.common, img.common) {
		e.old = append(e.old, old.common...)
		e.want = append(e.want, img.common...)
	}

	c := nft.Diff(e.old, e.want)
	addChains(&c, old, img)
	return c
}

// elementChange collects the elements that differ between two images. An element may be in both lists.
type elementChange struct{ old, want nft.Elements }

// addFrontends adds the elements of the frontends that differ, and their addresses.
func (e *elementChange) addFrontends(old, img *image) {
	old.frontends.Changes(img.frontends, func(at netip.Addr, before, after *[]frontend, isOld, isWanted bool) {
		var a, b []frontend
		if isOld {
			a = *before
		}

		if isWanted {
			b = *after
		}

		a, b = nft.TrimCommon(a, b, frontend.equal)
		for i := range a {
			a[i].elements(&e.old)
		}

		for i := range b {
			b[i].elements(&e.want)
		}

		e.addAddress(addressesSet, at, isOld, isWanted)
	})
}

// addLists adds the elements of the lists that are added or removed.
func (e *elementChange) addLists(old, img *image) {
	old.lists.Changes(img.lists, func(l *list, _, _ int, isOld, isWanted bool) {
		switch {
		case !isWanted:
			l.elements(&e.old)
		case !isOld:
			l.elements(&e.want)
		}
	})
}

// addInternal adds the elements that redirect internal traffic and differ.
func (e *elementChange) addInternal(old, img *image) {
	old.internal.Changes(img.internal, func(p clusterPort, before, after *[]netip.Addr, isOld, isWanted bool) {
		if isOld {
			p.elements(&e.old, (*before)[0])
		}

		if isWanted {
			p.elements(&e.want, (*after)[0])
		}
	})
}

// addAddresses adds the addresses of a set that differ.
func (e *elementChange) addAddresses(set string, old, want lb.Map[netip.Addr, struct{}]) {
	old.Changes(want, func(a netip.Addr, _, _ struct{}, isOld, isWanted bool) {
		e.addAddress(set, a, isOld, isWanted)
	})
}

// addAddress adds an address of a set if it is added or removed.
func (e *elementChange) addAddress(set string, a netip.Addr, isOld, isWanted bool) {
	if isOld == isWanted {
		return
	}

	list := &e.want
	if isOld {
		list = &e.old
	}

	family := familyOf(a.Is6())
	list.Put(family.named(set), string(a.AsSlice()), "")
}

// addChains adds the chains that differ, with the sets that only they use.
func addChains(c *nft.Change, old, img *image) {
	old.chains.Changes(img.chains, func(key chainName, before, after chainUse, isOld, isWanted bool) {
		name := string(key)
		switch {
		case !isOld:
			c.Sets = append(c.Sets, after.profile.setsOf(name)...)
			c.Chains = append(c.Chains, after.profile.chain(name))
		case !isWanted:
			c.OldChains = append(c.OldChains, name)
			for _, s := range before.profile.setsOf(name) {
				c.OldSets = append(c.OldSets, s.Name)
			}
		}
	})

	// Chains are ordered with their jump targets first, and are deleted in the reverse order.
	slices.Reverse(c.OldChains)
}
