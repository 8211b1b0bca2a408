package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// sources is a parsed list of source ranges.
type sources struct {
	// prefixes are masked and ordered; none lies within another.
	prefixes []netip.Prefix
	// unread describes the unreadable entries.
	unread []string
}

// splitSources splits an annotation. YAML folds long lists over lines, so the end
// of a line ends an entry as a comma does.
func splitSources(text string) []string {
	return strings.FieldsFunc(text, endsSource)
}

func endsSource(r rune) bool { return r == ',' || r == '\n' }

// readSources reads every readable entry. It skips blank entries.
func readSources(entries []string) sources {
	var s sources
	for _, entry := range entries {
		if strings.TrimSpace(entry) == "" {
			continue
		}
		p, err := parseSource(entry)
		if err != nil {
			s.unread = append(s.unread, err.Error())
			continue
		}
		s.prefixes = append(s.prefixes, p)
	}
	s.prefixes = outermost(s.prefixes)
	return s
}

// parseSource reads one source: a prefix or an address. It ignores host bits: the
// prefix length is what the author meant. IPv4 in IPv6 form is read as IPv4, because a
// packet has its IPv4 source as such.
func parseSource(entry string) (netip.Prefix, error) {
	entry = strings.TrimSpace(entry)
	p, err := netip.ParsePrefix(entry)
	if err != nil {
		a, err := netip.ParseAddr(entry)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%.60q is neither a prefix nor an address", entry)
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("%.60q is wider than IPv4 in IPv6 form can be (/96)", entry)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// outermost sorts prefixes and drops those that lie within another.
func outermost(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var out []netip.Prefix
	for _, p := range prefixes {
		// If two prefixes overlap, one contains the other, and here the wider comes first.
		if n := len(out); n == 0 || !out[n-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}
