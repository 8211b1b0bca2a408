package filter

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// frontend is a desired frontend with its profile and its lists.
type frontend struct {
	*lb.Frontend
	profile profile
	// allow and deny are the lists of its sources; nil if they are empty.
	allow, deny *list
	// refused is the reason why the frontend is closed; nil if it is not.
	refused error
}

// key returns the frontend's key in the sets of its family.
func (d *frontend) key() string {
	return nft.PortKey(d.Address, nft.Protocols[d.Protocol], d.Port)
}

// compare orders frontends by address, protocol and port.
func (d *frontend) compare(o *frontend) int {
	return cmp.Or(
		d.Address.Compare(o.Address),
		cmp.Compare(d.Protocol, o.Protocol),
		cmp.Compare(d.Port, o.Port),
	)
}

// equal reports whether two frontends have the same elements.
func (d frontend) equal(o frontend) bool {
	return d.compare(&o) == 0 &&
		d.profile == o.profile &&
		d.LogDrops == o.LogDrops &&
		d.sameLists(&o)
}

// frontends returns the valid frontends of an address, in order. If two frontends have the same address, protocol and
// port, no packet shows whose lists apply. Then the first one is closed, and the other one is omitted.
func (c *frontendChanges) frontends(d *Desired, all []lb.Frontend) []frontend {
	list := make([]frontend, 0, len(all))
	for i := range all {
		fe := &all[i]
		if !isReachable(fe) {
			err := fmt.Errorf("invalid frontend: %s port %d of %s", fe.Protocol, fe.Port, fe.Address)
			c.refused[fe.Service] = err
			continue
		}

		if d.NoLimits || d.NoInternal {
			fe = d.withoutUnsupported(*fe)
		}

		list = append(list, frontend{Frontend: fe})
	}

	slices.SortStableFunc(list, func(a, b frontend) int { return a.compare(&b) })
	return c.distinct(list)
}

// distinct returns the frontends without those at the place of the frontend before, which it closes.
func (c *frontendChanges) distinct(list []frontend) []frontend {
	out := list[:0]
	for _, fe := range list {
		last := len(out) - 1
		isDuplicate := last >= 0 && out[last].compare(&fe) == 0
		if isDuplicate {
			err := fmt.Errorf("two frontends at %s port %d of %s", fe.Protocol, fe.Port, fe.Address)
			out[last].refused = err
			c.refused[fe.Service] = err
			continue
		}

		out = append(out, fe)
	}

	return out
}

// isReachable reports whether a machine can send packets to a frontend.
func isReachable(fe *lb.Frontend) bool {
	_, isKnown := nft.Protocols[fe.Protocol]
	return isKnown &&
		fe.Address.IsValid() &&
		!fe.Address.Is4In6() &&
		fe.Address.Zone() == ""
}

// withoutUnsupported returns a frontend without the properties that the kernel does not support.
func (d *Desired) withoutUnsupported(f lb.Frontend) *lb.Frontend {
	if d.NoLimits {
		f.ConnectionLimit = 0
	}

	if d.NoInternal {
		f.ClusterIP = netip.Addr{}
	}

	return &f
}

// resolve sets the lists, the profiles and the parities of the frontends of an address. The argument old has the
// frontends of the address in an older image, in order; nil if it has none.
func resolve(lib *library, list []frontend, old *[]frontend) {
	none := &frontend{}
	var rest []frontend
	if old != nil {
		rest = *old
	}

	for i := range list {
		d := &list[i]
		for len(rest) > 0 && rest[0].compare(d) < 0 {
			rest = rest[1:]
		}

		before := none
		if len(rest) > 0 && rest[0].compare(d) == 0 {
			before = &rest[0]
		}

		ipv6 := d.Address.Is6()
		if d.Restricted {
			d.allow = lib.list(ipv6, d.Allow, &lib.recent[0], before.allow)
		}

		d.deny = lib.list(ipv6, d.Deny, &lib.recent[1], before.deny)

		d.profile = profileOf(d)
		if before != none {
			// The parity changes with the lists.
			d.profile.odd = before.profile.odd == before.sameLists(d)
		}
	}
}

// lists returns the lists that the frontend uses; nil for an empty list, and for a closed frontend.
func (d *frontend) lists() [2]*list {
	if d.refused != nil {
		return [2]*list{}
	}
	return [2]*list{d.allow, d.deny}
}

// elements adds all elements of the frontend.
func (d *frontend) elements(to *nft.Elements) {
	f := d.profile.family()
	key := d.key()
	to.Put(f.named(frontendsSet), key, d.profile.firstChain())
	for _, r := range d.profile.reasons() {
		drops := key + string(nft.Native(uint32(r)))
		to.Put(f.named(dropsSet), drops, "")
	}

	if d.LogDrops {
		to.Put(f.named(loggedSet), key, "")
	}

	sets := [2]string{allowSet, denySet}
	for i, l := range d.lists() {
		if l != nil {
			number := string(nft.Native(l.number))
			to.Put(d.profile.listsIn(sets[i]), key, number)
		}
	}
}

// elements adds the elements that redirect internal traffic from an address to the port of the ClusterIP.
func (p clusterPort) elements(to *nft.Elements, a netip.Addr) {
	f := familyOf(a.Is6())
	protocol := nft.Protocols[p.protocol]
	to.Put(
		f.named(internalSet),
		nft.PortKey(a, protocol, p.port),
		string(p.addr.AsSlice()),
	)
	to.Put(
		f.named(externalSet),
		nft.PortKey(p.addr, protocol, p.port),
		string(a.AsSlice()),
	)
}

// sameLists reports whether two frontends admit the same sources.
func (d *frontend) sameLists(o *frontend) bool {
	mine := d.lists()
	others := o.lists()
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
