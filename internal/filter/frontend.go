package filter

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// frontend is a frontend with what the table derives from it.
type frontend struct {
	*lb.Frontend
	profile profile
	// allow and deny are its lists; nil if they are empty. refused says why the frontend is closed.
	allow, deny *list
	refused     error
}

func (d *frontend) key() string {
	return nft.PortKey(d.Address, nft.Protocols[d.Protocol], d.Port)
}

// compare orders frontends as Filter has them.
func (d *frontend) compare(o *frontend) int {
	return cmp.Or(d.Address.Compare(o.Address), cmp.Compare(d.Protocol, o.Protocol), cmp.Compare(d.Port, o.Port))
}

// equal reports whether both have the same elements.
func (d frontend) equal(o frontend) bool {
	return d.compare(&o) == 0 && d.profile == o.profile && d.LogDrops == o.LogDrops && d.sameLists(&o)
}

// frontends returns the frontends of an address, in order, as far as the kernel can have them. If two have all in
// common that a packet shows, no node knows whose lists hold, and the first stays to be closed.
func (c *changed) frontends(d *Desired, all []lb.Frontend) []frontend {
	list := make([]frontend, 0, len(all))
	for i := range all {
		one := &all[i]
		if _, ok := nft.Protocols[one.Protocol]; !ok ||
			!one.Address.IsValid() ||
			one.Address.Is4In6() ||
			one.Address.Zone() != "" {
			// No machine can send packets there.
			c.refused[one.Service] = fmt.Errorf(
				"invalid frontend: %s port %d of %s",
				one.Protocol,
				one.Port,
				one.Address,
			)

			continue
		}

		if d.NoLimits || d.NoInternal {
			one = d.possible(*one)
		}

		list = append(list, frontend{Frontend: one})
	}

	slices.SortStableFunc(list, func(a, b frontend) int { return a.compare(&b) })
	distinct := list[:0]
	for _, fe := range list {
		if n := len(distinct); n > 0 && distinct[n-1].compare(&fe) == 0 {
			err := fmt.Errorf("two frontends at %s port %d of %s", fe.Protocol, fe.Port, fe.Address)
			distinct[n-1].refused, c.refused[fe.Service] = err, err
			continue
		}

		distinct = append(distinct, fe)
	}

	return distinct
}

// possible returns a frontend without what the kernel lacks.
func (d *Desired) possible(f lb.Frontend) *lb.Frontend {
	if d.NoLimits {
		f.ConnectionLimit = 0
	}

	if d.NoInternal {
		f.ClusterIP = netip.Addr{}
	}

	return &f
}

// resolve finds the lists, profiles and parities of the frontends of an address, which has others in an older image.
func resolve(y *library, list []frontend, old *[]frontend) {
	none := &frontend{}
	var rest []frontend
	if old != nil {
		rest = *old
	}

	for i := range list {
		d, before := &list[i], none
		for len(rest) > 0 && rest[0].compare(d) < 0 {
			rest = rest[1:]
		}

		if len(rest) > 0 && rest[0].compare(d) == 0 {
			before = &rest[0]
		}

		ipv6 := d.Address.Is6()
		if d.Restricted {
			d.allow = y.list(ipv6, d.Allow, &y.recent[0], before.allow)
		}

		d.deny = y.list(ipv6, d.Deny, &y.recent[1], before.deny)
		if d.profile = profileOf(d); before != none {
			d.profile.odd = before.profile.odd == before.sameLists(d)
		}
	}
}

// lists returns the lists that the frontend uses, or nil.
func (d *frontend) lists() [2]*list {
	if d.refused != nil {
		return [2]*list{}
	}
	return [2]*list{d.allow, d.deny}
}

// elements adds all elements of a frontend.
func (d *frontend) elements(to *nft.Elements) {
	f, key := d.profile.family(), d.key()
	to.Put(f.named(frontendsSet), key, d.profile.firstChain())
	for _, r := range d.profile.reasons() {
		to.Put(f.named(dropsSet), key+string(nft.Native(uint32(r))), "")
	}

	if d.LogDrops {
		to.Put(f.named(loggedSet), key, "")
	}

	for i, l := range d.lists() {
		if l != nil {
			to.Put(d.profile.listsIn([...]string{allowSet, denySet}[i]), key, string(nft.Native(l.number)))
		}
	}
}

// elements adds the elements that redirect internal traffic to a frontend at an address to the port.
func (p clusterPort) elements(to *nft.Elements, a netip.Addr) {
	f, protocol := familyOf(a.Is6()), nft.Protocols[p.protocol]
	to.Put(f.named(internalSet), nft.PortKey(a, protocol, p.port), string(p.addr.AsSlice()))
	to.Put(f.named(externalSet), nft.PortKey(p.addr, protocol, p.port), string(a.AsSlice()))
}

// sameLists reports whether both admit the same sources.
func (d *frontend) sameLists(o *frontend) bool {
	mine, others := d.lists(), o.lists()
	return d.profile.restricted == o.profile.restricted && mine == others
}

// reasons returns the reasons for which a frontend of the profile may drop packets.
func (p profile) reasons() []reason {
	list := []reason{unserved}
	if p.restricted || p.deny != "" {
		list = append(list, sourceRange)
	}

	if p.limit > 0 {
		list = append(list, connectionLimit)
	}

	if p.rate > 0 {
		list = append(list, rateLimit)
	}

	if p.refuse {
		list = append(list, noEndpoint)
	}

	return list
}
