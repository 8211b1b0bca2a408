package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// parseAddr reads one plain address. It rejects zones, which name a link of one machine, and IPv4-in-IPv6 forms, which
// are a second spelling of an address.
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

// Addresses returns the valid addresses of a list, without duplicates.
func Addresses(texts []string) (out []netip.Addr) {
	for _, text := range texts {
		a, err := parseAddr(text)
		if err == nil && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}

	return out
}

// parseRange reads one entry of IPAddressPool.spec.addresses: a prefix, a range or a single address. The note, if any,
// explains how the entry was read.
func parseRange(entry string) (r lb.Range, note string, err error) {
	entry = strings.TrimSpace(entry)

	prefix, prefixErr := netip.ParsePrefix(entry)
	if prefixErr == nil && !prefix.Addr().Is4In6() {
		// MetalLB also reads a prefix with host bits as its network: a pool migrated from it keeps its addresses.
		network := prefix.Masked()
		if network != prefix {
			note = fmt.Sprintf("%q has host bits set and is read as %s: write that", entry, network)
		}
		r = rangeOf(network)
	} else {
		r, err = parseSpan(entry)
		if err != nil {
			return lb.Range{}, "", err
		}
	}

	isEverything := r.From.IsUnspecified() && !r.To.Next().IsValid()
	if isEverything {
		return lb.Range{}, "", fmt.Errorf("%q is every address there is: write the prefix that is yours to give", entry)
	}

	return r, note, nil
}

// parseSpan reads a range, as "FROM-TO", or a single address.
func parseSpan(entry string) (lb.Range, error) {
	fromText, toText, isSpan := strings.Cut(entry, "-")
	if !isSpan {
		toText = fromText
	}

	from, fromErr := parseAddr(fromText)
	to, toErr := parseAddr(toText)
	if err := cmp.Or(fromErr, toErr); err != nil {
		return lb.Range{}, err
	}

	switch {
	case from.BitLen() != to.BitLen():
		return lb.Range{}, fmt.Errorf("%q begins in one IP family and ends in the other: write one range for each", entry)
	case to.Less(from):
		return lb.Range{}, fmt.Errorf("%q is reversed: write %s-%s", entry, to, from)
	}

	return lb.Range{From: from, To: to}, nil
}

// shortestPrefix returns the length of the largest prefix within the range.
func shortestPrefix(r lb.Range) int {
	for bits := range r.From.BitLen() {
		p := netip.PrefixFrom(r.From, bits).Masked()
		if p.Addr() != r.From {
			p = netip.PrefixFrom(lb.LastOf(p).Next(), bits)
		}

		if p.IsValid() && !r.To.Less(lb.LastOf(p)) {
			return bits
		}
	}

	return r.From.BitLen()
}
