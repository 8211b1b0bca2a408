package router

import (
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

func TestRouterFiles(t *testing.T) {
	hosts := wire.NewPlan("cp", "w1")
	for _, tc := range []struct {
		router string
		file   func(wire.Host, wire.Plan) ([]byte, error)
		has    []string
	}{
		{"r1", FRR, []string{"router bgp 64512", "router-id 172.31.0.1", "no bgp ebgp-requires-policy",
			"\n neighbor 172.31.0.10 peer-group NODES\n neighbor fd00:31::10 peer-group NODES6\n neighbor 172.31.0.11 peer-group NODES\n"}},
		{"r2", BIRD, []string{"local as 64513", "router id 172.31.0.2", "neighbor range 172.31.0.0/24 external", "neighbor range fd00:31::/64 external",
			"merge paths on"}},
	} {
		h, err := hosts.Find(tc.router)
		if err != nil {
			t.Fatal(err)
		}
		b, err := tc.file(h, hosts)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range tc.has {
			if !strings.Contains(string(b), s) {
				t.Errorf("%s has no %q:\n%s", tc.router, s, b)
			}
		}
	}
}
