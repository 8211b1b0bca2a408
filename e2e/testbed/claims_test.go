package testbed

import (
	"net/netip"
	"testing"
)

func TestAskFrom(t *testing.T) {
	for address, want := range map[string]string{
		"172.30.0.129": "172.30.0.253", "172.31.0.193": "172.31.0.253",
		"fd00:30::1:7": "fd00:30::253", "fd00:31::2:0": "fd00:31::253",
	} {
		if got := unusedAddress(netip.MustParseAddr(address)); got != netip.MustParseAddr(want) {
			t.Errorf("to ask for %s: %s, want %s", address, got, want)
		}
	}
}
