package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// parseAddr reads one plain address. It rejects zones, which name a link of one
// machine, and IPv4-in-IPv6 forms, which are a second spelling of an address.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(strings.TrimSpace(s))
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("%.60q is not an IPv4 or IPv6 address", s)
	case a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("%.60q has a zone: write %s", s, a.WithZone(""))
	case a.Is4In6():
		return netip.Addr{}, fmt.Errorf("%.60q is an IPv4 address in IPv6 form: write %s", s, a.Unmap())
	}
	return a, nil
}

// Addresses returns the addresses of a list, each once.
func Addresses(texts []string) (out []netip.Addr) {
	for _, text := range texts {
		if a, err := parseAddr(text); err == nil && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// parseRange reads one entry of IPAddressPool.spec.addresses: a prefix, a range
// or a single address. The note, if any, explains how the entry was read.
func parseRange(entry string) (r lb.Range, note string, err error) {
	entry = strings.TrimSpace(entry)
	from, to, span := strings.Cut(entry, "-")
	if !span {
		to = from
	}
	a, errA := parseAddr(from)
	b, errB := parseAddr(to)
	err = cmp.Or(errA, errB)
	if p, notPrefix := netip.ParsePrefix(entry); notPrefix == nil && !p.Addr().Is4In6() {
		// MetalLB also reads such a prefix as its network: a pool migrated from it keeps its addresses.
		if network := p.Masked(); network != p {
			note = fmt.Sprintf("%q has host bits set and is read as %s: write that", entry, network)
			p = network
		}
		a, b, err = p.Addr(), lastOf(p), nil
	}
	switch {
	case err != nil:
	case a.BitLen() != b.BitLen():
		err = fmt.Errorf("%q begins in one IP family and ends in the other: write one range for each", entry)
	case b.Less(a):
		err = fmt.Errorf("%q is reversed: write %s-%s", entry, b, a)
	case a.IsUnspecified() && !b.Next().IsValid():
		err = fmt.Errorf("%q is every address there is: write the prefix that is yours to give", entry)
	default:
		return lb.Range{From: a, To: b}, note, nil
	}
	return lb.Range{}, "", err
}

// lastOf returns the last address of a masked prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// leastSpecific returns the length of the largest prefix within the range.
func leastSpecific(r lb.Range) int {
	for bits := range r.From.BitLen() {
		p := netip.PrefixFrom(r.From, bits).Masked()
		if p.Addr() != r.From {
			p = netip.PrefixFrom(lastOf(p).Next(), bits)
		}
		if p.IsValid() && !r.To.Less(lastOf(p)) {
			return bits
		}
	}
	return r.From.BitLen()
}
