package filter

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// Permanent implements nft.Image.
func (img *image) Permanent() *nft.Layout { return img.table }

// From implements nft.Image. It makes elements only of what differs.
func (img *image) From(old *image) nft.Change {
	if old == nil {
		old = blank()
	}

	var had, want nft.Elements
	// moved notes an address that comes or goes in a set of its family.
	moved := func(set string, a netip.Addr, there, wanted bool) {
		to := &want
		if there {
			to = &had
		}

		if there != wanted {
			to.Put(familyOf(a.Is6()).named(set), string(a.AsSlice()), "")
		}
	}

	old.frontends.Changes(img.frontends, func(at netip.Addr, was, is *[]frontend, there, wanted bool) {
		var a, b []frontend
		if there {
			a = *was
		}

		if wanted {
			b = *is
		}

		a, b = nft.TrimCommon(a, b, frontend.equal)
		for i := range a {
			a[i].elements(&had)
		}

		for i := range b {
			b[i].elements(&want)
		}

		moved(addressesSet, at, there, wanted)
	})

	old.lists.Changes(img.lists, func(l *list, _, _ int, there, wanted bool) {
		switch {
		case !wanted:
			l.elements(&had)
		case !there:
			l.elements(&want)
		}
	})

	old.internal.Changes(img.internal, func(p clusterPort, was, is *[]netip.Addr, there, wanted bool) {
		if there {
			p.elements(&had, (*was)[0])
		}

		if wanted {
			p.elements(&want, (*is)[0])
		}
	})

	old.of.Pings.Changes(img.of.Pings, func(a netip.Addr, _, _ struct{}, there, wanted bool) {
		moved(pingsSet, a, there, wanted)
	})

	old.of.Relayed.Changes(img.of.Relayed, func(a netip.Addr, _, _ struct{}, there, wanted bool) {
		moved(relayedSet, a, there, wanted)
	})

	if !lb.Same(old.others, img.others) {
		had, want = append(had, old.others...), append(want, img.others...)
	}

	c := nft.Diff(had, want)
	old.chains.Changes(img.chains, func(name chainName, was, is chainUse, there, wanted bool) {
		switch {
		case !there:
			c.Sets, c.Chains = append(
				c.Sets,
				is.profile.setsOf(string(name))...), append(
				c.Chains,
				is.profile.chain(string(name)),
			)
		case !wanted:
			c.OldChains = append(c.OldChains, string(name))
			for _, s := range was.profile.setsOf(string(name)) {
				c.OldSets = append(c.OldSets, s.Name)
			}
		}
	})

	slices.Reverse(c.OldChains)
	return c
}
