package main

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

func TestLocalMember(t *testing.T) {
	mac := lb.MAC{2, 0, 0, 0, 0, 1}
	prefixes := func(p ...string) (out []netip.Prefix) {
		for _, s := range p {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	got := localMember([]lb.Interface{
		{Name: "lo", Up: true, Loopback: true, Prefixes: prefixes("127.0.0.1/8")},
		{Name: "eth0", Up: true, MAC: mac, Prefixes: prefixes("192.0.2.1/24", "fe80::1/64", "2001:db8::1/64")},
		{Name: "eth1", MAC: mac, Prefixes: prefixes("198.51.100.1/24")},
		{Name: "veth1", Up: true, MAC: mac, NoClients: true, Prefixes: prefixes("fe80::2/64")},
		{Name: "docker0", Up: true, MAC: mac, NoClients: true, Prefixes: prefixes("172.17.0.1/16")},
	}, []lb.Refusal{{Link: "docker0"}, {Link: "eth1"}}, map[string]bool{"docker0": true})
	addresses := func(a ...string) (out []netip.Addr) {
		for _, s := range a {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	want := lb.Member{Links: []lb.Link{
		{Name: "eth0", MAC: mac, Default: true, Prefixes: prefixes("192.0.2.0/24", "2001:db8::/64"), Addresses: addresses("192.0.2.1", "fe80::1")},
		{Name: "docker0", MAC: mac, Refused: true, Silent: true, Prefixes: prefixes("172.17.0.0/16"), Addresses: addresses("172.17.0.1")},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	got.Stopping, got.Unfit = true, lb.Unfiltered
	var s lb.State
	metadata := map[string]lb.Member{"a": got, "b": {Partial: true, Links: want.Links}}
	applyMembers(&s, metadata)
	macs := macsOf(metadata)
	if !macs[mac] || !s.Stopping["a"] || s.Stopping["b"] || len(s.Links["a"]) != 2 || s.Links["b"] != nil || s.Unfit["a"] != lb.Unfiltered {
		t.Errorf("macs %v, state %+v", macs, s)
	}
}
