package filter

import (
	"cmp"
	"fmt"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// frontend is a frontend with what the table derives from it.
type frontend struct {
	lb.Frontend
	profile profile
	// first: no frontend of the same address is ahead of it. The first holds the element of their address.
	first bool
	// allow and deny are its lists; nil if they are empty. refused says why the frontend is closed.
	allow, deny *list
	refused     error
	// internal: internal traffic is redirected to its ClusterIP.
	internal bool
}

func (d *frontend) key() string {
	protocol, _ := nft.ProtocolNumber(d.Protocol)
	return nft.PortKey(d.Address, protocol, d.Port)
}

// compare orders frontends as Filter has them.
func (d *frontend) compare(o *frontend) int {
	return cmp.Or(d.Address.Compare(o.Address), cmp.Compare(d.Protocol, o.Protocol), cmp.Compare(d.Port, o.Port))
}

// equal reports whether both have the same elements.
func (d *frontend) equal(o *frontend) bool {
	return d.profile == o.profile && d.first == o.first && d.internal == o.internal && d.LogDrops == o.LogDrops && d.ClusterIP == o.ClusterIP &&
		d.sameLists(o)
}

// newFrontend validates a frontend.
func newFrontend(d lb.Frontend) (frontend, error) {
	d.Address, d.ClusterIP = d.Address.Unmap(), d.ClusterIP.Unmap()
	if _, ok := nft.ProtocolNumber(d.Protocol); !ok || !d.Address.IsValid() || d.Address.Zone() != "" {
		return frontend{}, fmt.Errorf("invalid frontend: %s port %d of %s", d.Protocol, d.Port, d.Address)
	}
	return frontend{Frontend: d}, nil
}

// resolve finds the lists and the profile of a frontend. Its lists are likely those of a neighbour, or of the same
// frontend in another image.
func (d *frontend) resolve(y *library, neighbour, before *frontend) {
	ipv6 := d.Address.Is6()
	if d.Restricted {
		d.allow = y.list(ipv6, d.Allow, neighbour.allow, before.allow)
	}
	d.deny = y.list(ipv6, d.Deny, neighbour.deny, before.deny)
	d.profile = profileOf(d)
}

// lists returns the lists that the frontend uses, or nil.
func (d *frontend) lists() [2]*list {
	if d.refused != nil {
		return [2]*list{}
	}
	return [2]*list{d.allow, d.deny}
}

// elements appends all elements of a frontend.
func (d *frontend) elements(list []nft.SetElement) []nft.SetElement {
	f, key := d.profile.family(), d.key()
	put := func(base, key, value string) {
		list = append(list, element(f.named(base), key, value))
	}
	put(frontendsSet, key, d.profile.firstChain())
	if d.first {
		put(addressesSet, string(d.Address.AsSlice()), "")
	}
	for _, r := range d.profile.reasons() {
		put(dropsSet, key+string(nft.Native(uint32(r))), "")
	}
	if d.LogDrops {
		put(loggedSet, key, "")
	}
	if d.internal {
		protocol, _ := nft.ProtocolNumber(d.Protocol)
		put(internalSet, key, string(d.ClusterIP.AsSlice()))
		put(externalSet, nft.PortKey(d.ClusterIP, protocol, d.Port), string(d.Address.AsSlice()))
	}
	return d.roles(list)
}

// roles appends the elements that lead to the frontend's lists.
func (d *frontend) roles(to []nft.SetElement) []nft.SetElement {
	for i, l := range d.lists() {
		if l != nil {
			to = append(to, element(d.profile.listsIn([...]string{allowSet, denySet}[i]), d.key(), string(nft.Native(l.number))))
		}
	}
	return to
}

// sameLists reports whether both admit the same sources.
func (d *frontend) sameLists(o *frontend) bool {
	mine, others := d.lists(), o.lists()
	return d.profile.restricted == o.profile.restricted && mine == others
}

// reasons returns the reasons for which a frontend of the profile may drop packets.
func (p profile) reasons() []reason {
	list := []reason{unserved}
	if p.restricted || p.deny != (lengths{}) {
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
