package wire

import (
	"strings"
	"testing"
)

func TestPlan(t *testing.T) {
	hosts := NewPlan("cp", "w1", "w2", "w3")
	want := map[string][]string{
		"cp":     {"eth0 lan lan-cp 02:00:00:00:00:0a 172.30.0.10/24 fd00:30::10/64", "eth1 fabric fab-cp 02:00:00:00:01:0a 172.31.0.10/24 fd00:31::10/64"},
		"w1":     {"eth0 lan lan-w1 02:00:00:00:00:0b 172.30.0.11/24 fd00:30::11/64", "eth1 fabric fab-w1 02:00:00:00:01:0b 172.31.0.11/24 fd00:31::11/64"},
		"w2":     {"eth0 lan lan-w2 02:00:00:00:00:0c 172.30.0.12/24 fd00:30::12/64", "eth1 fabric fab-w2 02:00:00:00:01:0c 172.31.0.12/24 fd00:31::12/64"},
		"w3":     {"eth0 lan lan-w3 02:00:00:00:00:0d 172.30.0.13/24 fd00:30::13/64", "eth1 fabric fab-w3 02:00:00:00:01:0d 172.31.0.13/24 fd00:31::13/64"},
		"r1":     {"eth0 fabric fab-r1 02:00:00:00:01:01 172.31.0.1/24 fd00:31::1/64", "eth1 outer out-r1 02:00:00:00:02:01 10.200.0.1/24 fd00:200::1/64"},
		"r2":     {"eth0 fabric fab-r2 02:00:00:00:01:02 172.31.0.2/24 fd00:31::2/64", "eth1 outer out-r2 02:00:00:00:02:02 10.200.0.2/24 fd00:200::2/64"},
		"client": {"eth0 lan lan-client 02:00:00:00:00:64 172.30.0.100/24 fd00:30::100/64"},
		"far":    {"eth0 outer out-far 02:00:00:00:02:64 10.200.0.100/24 fd00:200::100/64"},
	}
	if len(hosts) != len(want) {
		t.Errorf("plan has %d hosts, want %d", len(hosts), len(want))
	}
	for _, h := range hosts {
		var got []string
		for _, l := range h.Legs {
			got = append(got, strings.Join([]string{l.Link, l.Bridge, l.Port, l.MAC, l.V4.String(), l.V6.String()}, " "))
		}
		if strings.Join(got, "; ") != strings.Join(want[h.Name], "; ") {
			t.Errorf("host %s:\n got %q\nwant %q", h.Name, got, want[h.Name])
		}
	}
}
