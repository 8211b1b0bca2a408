package config

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

func TestParseRange(t *testing.T) {
	for _, tt := range []struct{ entry, want, note, err string }{
		{"192.0.2.0/26", "192.0.2.0-192.0.2.63", "", ""},
		{"2001:db8::/112", "2001:db8::-2001:db8::ffff", "", ""},
		{" 192.0.2.0/31 ", "192.0.2.0-192.0.2.1", "", ""},
		{"0.0.0.0/1", "0.0.0.0-127.255.255.255", "", ""},
		{"192.0.2.10-192.0.2.20", "192.0.2.10-192.0.2.20", "", ""},
		{"2001:db8::1 - 2001:db8::2", "2001:db8::1-2001:db8::2", "", ""},
		{"192.0.2.7-192.0.2.7", "192.0.2.7", "", ""},
		{"192.0.2.7", "192.0.2.7", "", ""},
		{"2001:db8::7", "2001:db8::7", "", ""},
		{
			"192.0.2.7/26",
			"192.0.2.0-192.0.2.63", `"192.0.2.7/26" has host bits set and is read as 192.0.2.0/26: write that`, "",
		},
		{
			"2001:db8::1:5/112",
			"2001:db8::1:0-2001:db8::1:ffff",
			`"2001:db8::1:5/112" has host bits set and is read as 2001:db8::1:0/112: write that`, "",
		},

		{"192.0.2.20-192.0.2.10", "", "", `"192.0.2.20-192.0.2.10" is reversed: write 192.0.2.10-192.0.2.20`},
		{
			"192.0.2.1-2001:db8::1",
			"", "", `"192.0.2.1-2001:db8::1" begins in one IP family and ends in the other: write one range for each`,
		},
		{"0.0.0.0/0", "", "", `"0.0.0.0/0" is every address there is: write the prefix that is yours to give`},
		{"2001:db8::/0", "", "", `"2001:db8::/0" is every address there is: write the prefix that is yours to give`},
		{"::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "", "",
			`"::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff" is every address there is: write the prefix that is yours to give`},
		{"::ffff:192.0.2.0/120", "", "", `"::ffff:192.0.2.0/120" is not an IPv4 or IPv6 address`},
		{"::ffff:192.0.2.1", "", "", `"::ffff:192.0.2.1" is an IPv4 address in IPv6 form: write 192.0.2.1`},
		{"fe80::1%eth0", "", "", `"fe80::1%eth0" has a zone: write fe80::1`},
		{"192.0.2.0/33", "", "", `"192.0.2.0/33" is not an IPv4 or IPv6 address`},
		{"192.0.2.1-192.0.2.5-192.0.2.9", "", "", `"192.0.2.5-192.0.2.9" is not an IPv4 or IPv6 address`},
		{"192.0.2.10-20", "", "", `"20" is not an IPv4 or IPv6 address`},
		{"", "", "", `"" is not an IPv4 or IPv6 address`},
	} {
		r, note, err := parseRange(tt.entry)
		got := []string{"", note, ""}
		if r != (lb.Range{}) {
			got[0] = r.String()
		}
		if err != nil {
			got[2] = err.Error()
		}
		if diff := cmp.Diff([]string{tt.want, tt.note, tt.err}, got); diff != "" {
			t.Errorf("%q: -want +got\n%s", tt.entry, diff)
		}
	}
}

// An accepted entry is one valid range, and parses to the same value when it is formatted again.
func FuzzParseRange(f *testing.F) {
	for _, s := range []string{
		"192.0.2.0/26", "192.0.2.7/26", "2001:db8::/112", "192.0.2.10 - 192.0.2.20", "192.0.2.7", "::/0", "::-::",
		"1-2", "/", "-", "::ffff:192.0.2.0/120", "fe80::1%eth0-fe80::2%eth0", "192.0.2.20-192.0.2.10",
		"255.255.255.255/1", "\x00", "192.0.2.1-::1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, entry string) {
		r, note, err := parseRange(entry)
		if err != nil {
			if r != (lb.Range{}) || note != "" {
				t.Fatalf("%q: error %v beside %v, %q", entry, err, r, note)
			}
			return
		}
		if !r.Contains(r.From) || !r.Contains(r.To) || r.From.Zone() != "" || r.From.Is4In6() || r.To.Is4In6() {
			t.Fatalf("%q: unsound %v", entry, r)
		}
		if bits := shortestPrefix(r); bits < 1 || bits > r.From.BitLen() {
			t.Fatalf("%q: least specific prefix of %v has %d bits", entry, r, bits)
		}
		again, _, err := parseRange(r.String())
		if err != nil || again != r {
			t.Fatalf("%q: %v reads as %v, %v", entry, r, again, err)
		}
		if note != "" && !strings.Contains(note, netip.PrefixFrom(r.From, shortestPrefix(r)).String()) {
			t.Fatalf("%q: note %q does not name %v", entry, note, r)
		}
	})
}

func TestLeastSpecific(t *testing.T) {
	for entry, want := range map[string]int{
		"192.0.2.0/24":                 24,
		"192.0.2.0-192.0.2.255":        24,
		"192.0.2.1-192.0.2.255":        25,
		"192.0.2.1-192.0.2.2":          32,
		"192.0.2.10-192.0.2.20":        30,
		"0.0.0.0/1":                    1,
		"255.255.255.255":              32,
		"2001:db8::/64":                64,
		"2001:db8::1-2001:db8::1:0":    113,
		"::1-ffff:ffff:ffff::ffff:1:0": 2,
	} {
		r, _, err := parseRange(entry)
		must(t, err)
		if got := shortestPrefix(r); got != want {
			t.Errorf("%s: %d, want %d", entry, got, want)
		}
	}
}

// Claims are compared with a map of one owner for each address.
func FuzzClaim(f *testing.F) {
	f.Add([]byte{10, 20, 15, 25, 0, 255, 3, 3, 5, 0})
	f.Add([]byte{0, 255, 0, 255, 255, 255})
	f.Add([]byte{250, 255, 0, 3, 2, 252})
	f.Fuzz(func(t *testing.T, ends []byte) {
		at := func(b byte) netip.Addr { return netip.AddrFrom4([4]byte{255, 255, 255, b}) }
		var owners ownedRanges
		var want [256]string
		for i := 0; i+1 < len(ends) && i < 40; i += 2 {
			name := string(rune('a' + i))
			from, to := min(ends[i], ends[i+1]), max(ends[i], ends[i+1])
			lost := lostRanges{}
			got := owners.claim(rangeOwner{pool: name}, lb.Range{From: at(from), To: at(to)}, lost)
			for b := int(from); b <= int(to); b++ {
				holder := want[b]
				if holder == "" {
					want[b], holder = name, name
				}
				in := func(ranges []lb.Range) bool {
					n := 0
					for _, r := range ranges {
						if r.Contains(at(byte(b))) {
							n++
						}
					}
					return n == 1
				}
				if in(got) != (holder == name) || in(lost[rangeOwner{pool: holder}]) != (holder != name) {
					t.Fatalf("%v: %s claims %d-%d: got %v, lost %v; %d is of %s", ends, name, from, to, got, lost, b, holder)
				}
			}
		}
	})
}

func TestParseCommunity(t *testing.T) {
	for text, want := range map[string]lb.Community{
		"65000:100": {A: 65000, B: 100}, "0:65535": {B: 65535}, "large:4294967295:0:7": {Large: true, A: 4294967295, C: 7},
	} {
		if got, err := parseCommunity(text); err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"65536:1", "1:65536", "1:2:3", "large:1:2", "large:4294967296:1:1", "-1:2", "+1:2", "no-export", "", "large:",
		"1:" + strings.Repeat("9", 1<<10), "0x10:1", "Large:1:2:3", "large:1:2:3:4", "1:", " 1:2", "large:1:2: 3",
		"large:large:1:2:3", "1_0:1", "large:18446744073709551616:1:1\x00",
	} {
		if got, err := parseCommunity(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

// An accepted community fits the wire format, and parses to the same value when it is formatted again.
func FuzzParseCommunity(f *testing.F) {
	for _, s := range []string{"65000:100", "large:64500:1:2", "65536:1", "large:1:2", "::", "no-export", "00001:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := parseCommunity(s)
		if err != nil {
			return
		}
		if !c.Large && (c.A > 65535 || c.B > 65535 || c.C != 0) {
			t.Fatalf("%q: %v does not fit", s, c)
		}
		if again, err := parseCommunity(c.String()); err != nil || again != c {
			t.Fatalf("%q: %v reads as %v, %v", s, c, again, err)
		}
	})
}
