package filter

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// frontend is a frontend with what the table derives from it.
type frontend struct {
	lb.Frontend
	profile profile
	// first: no frontend of the same address is ahead of it. The first holds the element of their address.
	first bool
	// internal: internal traffic is redirected to its ClusterIP.
	internal bool
}

// protocolNumber is the protocol number in the IP header.
func protocolNumber(name string) (byte, bool) {
	switch name {
	case "TCP":
		return unix.IPPROTO_TCP, true
	case "UDP":
		return unix.IPPROTO_UDP, true
	case "SCTP":
		return unix.IPPROTO_SCTP, true
	}
	return 0, false
}

// padded pads data to whole registers.
func padded(data ...byte) []byte { return append(data, make([]byte, (4-len(data)%4)%4)...) }

// portKey is a port of an address as a key.
func portKey(a netip.Addr, protocol byte, port uint16) string {
	key := append(a.AsSlice(), padded(protocol)...)
	return string(append(key, padded(binary.BigEndian.AppendUint16(nil, port)...)...))
}

func (d *frontend) key() string {
	protocol, _ := protocolNumber(d.Protocol)
	return portKey(d.Address, protocol, d.Port)
}

// compare orders frontends as Filter has them.
func (d *frontend) compare(o *frontend) int {
	return cmp.Or(d.Address.Compare(o.Address), cmp.Compare(d.Protocol, o.Protocol), cmp.Compare(d.Port, o.Port))
}

// equal reports whether both have the same elements.
func (d *frontend) equal(o *frontend) bool {
	return d.profile == o.profile && d.first == o.first && d.internal == o.internal && d.LogDrops == o.LogDrops && d.ClusterIP == o.ClusterIP &&
		slices.Equal(d.Allow, o.Allow) && slices.Equal(d.Deny, o.Deny)
}

// newFrontend validates and normalizes a frontend.
func newFrontend(d lb.Frontend) (frontend, error) {
	d.Address, d.ClusterIP = d.Address.Unmap(), d.ClusterIP.Unmap()
	if _, ok := protocolNumber(d.Protocol); !ok || !d.Address.IsValid() || d.Address.Zone() != "" {
		return frontend{}, fmt.Errorf("invalid frontend: %s port %d of %s", d.Protocol, d.Port, d.Address)
	}
	d.Allow, d.Deny = sources(d.Address, d.Allow), sources(d.Address, d.Deny)
	return frontend{Frontend: d, profile: profileOf(&d)}, nil
}

// sources returns the masked prefixes of the address's family; the same slice if all of them already are.
func sources(of netip.Addr, list []netip.Prefix) []netip.Prefix {
	fits := func(p netip.Prefix) bool {
		return p.IsValid() && p.Addr().Is4() == of.Is4() && !p.Addr().Is4In6() && p == p.Masked()
	}
	if !slices.ContainsFunc(list, func(p netip.Prefix) bool { return !fits(p) }) {
		return list
	}
	var out []netip.Prefix
	for _, p := range list {
		const mapped = 96 // ::ffff:0:0/96 (RFC 4291 section 2.5.5.2)
		if p.Addr().Is4In6() && p.Bits() >= mapped {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
		}
		if p = p.Masked(); fits(p) {
			out = append(out, p)
		}
	}
	return out
}

// elements appends all elements of a frontend.
func (d *frontend) elements(list []nft.SetElement) []nft.SetElement { return d.lists(d.settings(list)) }

// settings appends the elements of a frontend except its lists.
func (d *frontend) settings(list []nft.SetElement) []nft.SetElement {
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
		protocol, _ := protocolNumber(d.Protocol)
		put(internalSet, key, string(d.ClusterIP.AsSlice()))
		put(externalSet, portKey(d.ClusterIP, protocol, d.Port), string(d.Address.AsSlice()))
	}
	return list
}

// lists appends the elements of a frontend's allow and deny lists.
func (d *frontend) lists(list []nft.SetElement) []nft.SetElement {
	f, key := d.profile.family(), d.key()
	put := func(base string, p netip.Prefix) {
		k := key + string(d.profile.lengthKey(p.Bits())) + string(p.Addr().AsSlice())
		list = append(list, element(f.named(base), k, ""))
	}
	if d.Restricted {
		for _, p := range d.Allow {
			put(allowSet, p)
		}
	}
	for _, p := range d.Deny {
		put(denySet, p)
	}
	return list
}

// sameLists reports whether both admit the same sources.
func (d *frontend) sameLists(o *frontend) bool {
	return d.Restricted == o.Restricted && slices.Equal(d.Allow, o.Allow) && slices.Equal(d.Deny, o.Deny)
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
