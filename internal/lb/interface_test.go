package lb

import (
	"net/netip"
	"testing"
)

func TestInterface(t *testing.T) {
	prefix := netip.MustParsePrefix
	for _, tt := range []struct {
		name                 string
		change               func(*Interface)
		announces, byDefault bool
		linkLocal            string
	}{
		{"ethernet", func(l *Interface) {}, true, true, "invalid IP"},
		{"with addresses", func(l *Interface) {
			l.Prefixes = []netip.Prefix{prefix("169.254.1.1/16"), prefix("2001:db8::1/64"), prefix("fe80::1/64")}
		}, true, true, "fe80::1"},
		{"no clients", func(l *Interface) { l.NoClients = true }, true, false, "invalid IP"},
		{"down", func(l *Interface) { l.Up = false }, false, false, "invalid IP"},
		{"no MAC", func(l *Interface) { l.MAC = MAC{} }, false, false, "invalid IP"},
		{"group MAC", func(l *Interface) { l.MAC[0] = 1 }, false, false, "invalid IP"},
		{"loopback", func(l *Interface) { l.Loopback = true }, false, false, "invalid IP"},
		{"no ARP", func(l *Interface) { l.NoARP = true }, false, false, "invalid IP"},
		{"port of a bond", func(l *Interface) { l.Port = true }, false, false, "invalid IP"},
	} {
		l := Interface{Name: "eth0", MAC: MAC{0, 0x53, 0, 0, 0, 1}, Up: true}
		tt.change(&l)
		if l.CanAnnounce() != tt.announces || l.Usable() != tt.byDefault || l.LinkLocal().String() != tt.linkLocal {
			t.Errorf("%s: announces %v, by default %v, link-local address %v", tt.name, l.CanAnnounce(), l.Usable(),
				l.LinkLocal())
		}
	}
}
