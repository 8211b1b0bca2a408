package lb

import (
	"fmt"
	"net/netip"
	"testing"
)

// TestPrefixes covers ranges by prefixes, up to the last address of each family.
func TestPrefixes(t *testing.T) {
	for _, tt := range []struct{ from, to, want string }{
		{"192.0.2.1", "192.0.2.1", "[192.0.2.1/32]"},
		{"192.0.2.0", "192.0.2.255", "[192.0.2.0/24]"},
		{"192.0.2.1", "192.0.2.6", "[192.0.2.1/32 192.0.2.2/31 192.0.2.4/31 192.0.2.6/32]"},
		{"0.0.0.0", "255.255.255.255", "[0.0.0.0/0]"},
		{"255.255.255.254", "255.255.255.255", "[255.255.255.254/31]"},
		{"2001:db8::1", "2001:db8::2", "[2001:db8::1/128 2001:db8::2/128]"},
		{"::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "[::/0]"},
	} {
		r := Range{netip.MustParseAddr(tt.from), netip.MustParseAddr(tt.to)}
		if got := fmt.Sprint(r.Prefixes()); got != tt.want {
			t.Errorf("%s: %s, want %s", r, got, tt.want)
		}
	}
}
