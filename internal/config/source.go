package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// sources is a list of source ranges as it was read.
type sources struct {
	// prefixes are masked, ordered, none within another.
	prefixes []netip.Prefix
	// unread says which entries cannot be read, and why.
	unread []string
}

// splitSources splits an annotation. YAML folds long lists over lines, so a line
// ends an entry as a comma does.
func splitSources(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' })
}

// readSources reads every entry that can be read. Entries of spaces alone are none.
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

// parseSource reads one source: a prefix or an address. Host bits say which host
// the author had before his eyes; the length says what he meant. A packet bears
// its IPv4 source as such, so IPv4 in IPv6 form is IPv4.
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

// outermost orders prefixes and drops those that lie within another.
func outermost(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var out []netip.Prefix
	for _, p := range prefixes {
		// Of prefixes that overlap one contains the other, and the wider is the earlier here.
		if n := len(out); n == 0 || !out[n-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

// listSome joins what is said, for a message which must not grow with the list.
func listSome(all []string) string {
	const most = 5
	if more := len(all) - most; more > 0 {
		return fmt.Sprintf("%s, and %d more", strings.Join(all[:most], ", "), more)
	}
	return strings.Join(all, ", ")
}
