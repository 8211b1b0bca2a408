package link

import (
	"encoding/json"
	"net/netip"
	"testing"
)

func TestAnnounces(t *testing.T) {
	eth := Link{Index: 2, Name: "eth0", MAC: MAC{0, 0x53, 0, 0, 0, 1}, Up: true, Broadcast: true}
	with := func(change func(*Link)) Link {
		l := eth
		change(&l)
		return l
	}
	named := func(name string) Link { return with(func(l *Link) { l.Name = name }) }
	for _, tt := range []struct {
		name           string
		link           Link
		usable, byName bool
	}{
		{"ethernet", eth, true, true},
		{"down", with(func(l *Link) { l.Up = false }), false, false},
		{"no MAC", with(func(l *Link) { l.MAC = MAC{} }), false, false},
		{"group MAC", with(func(l *Link) { l.MAC[0] = 1 }), false, false},
		{"loopback", with(func(l *Link) { l.Loopback = true }), false, false},
		{"no ARP", with(func(l *Link) { l.NoARP = true }), false, false},
		{"port of a bond", with(func(l *Link) { l.Master, l.Port = 7, true }), false, false},
		{"link of a VRF", with(func(l *Link) { l.Master = 7 }), true, true},
		{"bond", named("bond0"), true, true},
		{"vlan", named("eth0.10"), true, true},
		{"bridge with a chosen name", named("br0"), true, true},
		{"docker", named("docker0"), false, true},
		{"libvirt", named("virbr0"), false, true},
		{"pod", named("veth12ab"), false, true},
		{"calico", named("cali12ab"), false, true},
		{"cni bridge", named("cni0"), false, true},
		{"ipvs", named("kube-ipvs0"), false, true},
		{"lxc", named("lxc12ab"), false, true},
	} {
		if got := tt.link.Usable(); got != tt.usable {
			t.Errorf("%s: announces by default = %v, want %v", tt.name, got, tt.usable)
		}
		if got := tt.link.CanAnnounce(); got != tt.byName {
			t.Errorf("%s: announces when named = %v, want %v", tt.name, got, tt.byName)
		}
	}
}

func TestLinkLocal(t *testing.T) {
	l := Link{Prefixes: []netip.Prefix{
		netip.MustParsePrefix("169.254.1.1/16"), netip.MustParsePrefix("2001:db8::1/64"),
	}}
	if got := l.LinkLocal(); got.IsValid() {
		t.Errorf("LinkLocal = %v without one", got)
	}
	want := netip.MustParseAddr("fe80::1")
	l.Prefixes = append(l.Prefixes, netip.PrefixFrom(want, 64))
	if got := l.LinkLocal(); got != want {
		t.Errorf("LinkLocal = %v, want %v", got, want)
	}
}

func TestMACText(t *testing.T) {
	b, err := json.Marshal(map[string]MAC{"mac": {0, 0x53, 0, 0, 0, 1}})
	if want := `{"mac":"00:53:00:00:00:01"}`; err != nil || string(b) != want {
		t.Errorf("%s, %v; want %s", b, err, want)
	}
}
