package bgp

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// table is the routes that FRR has from others, with their AS_PATHs, a line each.
func (f frr) table() string {
	var lines []string
	for _, family := range []string{"ipv4", "ipv6"} {
		var answer struct {
			Routes map[string][]struct {
				Path, PeerID string
			}
		}
		f.ShowJSON("show bgp "+family+" unicast", &answer)
		for prefix, paths := range answer.Routes {
			for _, p := range paths {
				if p.PeerID != "(unspec)" {
					lines = append(lines, prefix+" path "+p.Path)
				}
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// table is the routes that BIRD has by BGP.
func (b bird) table() string {
	var lines []string
	for _, line := range strings.Split(b.Show("show route where source = RTS_BGP"), "\n") {
		if prefix, rest, ok := strings.Cut(line, " "); ok && strings.Contains(rest, "[node") {
			lines = append(lines, prefix)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Routers that send their own routes, a default among them.
const (
	frrSends  = " address-family ipv4 unicast\n  network 203.0.113.0/24\n  network 0.0.0.0/0\n  neighbor 192.0.2.1 default-originate\n"
	birdSends = "protocol static { ipv4; route 0.0.0.0/0 unreachable; route 203.0.113.0/24 unreachable; }\nprotocol static { ipv6; route ::/0 unreachable; }\n"
)

// A router has exactly the routes that are meant for it, with the attributes that its kind of session allows. Nothing
// that a router sends is used or passed on.
func TestInteropRoutes(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		l := newLabOf(t, strings.Replace(frrConfig, " address-family ipv4 unicast\n", " no bgp network import-check\n"+frrSends, 1), birdConfig+birdSends)
		s, _ := run(t)
		routes := l.routes()
		for i := range routes {
			routes[i].LocalPref, routes[i].Prepend, routes[i].MED = 250, 2, lb.MED{Sent: true, Value: 77}
		}
		set(t, s, desire(l.peers(), routes...))
		await(t, "FRR's table", lines(
			"198.51.100.1/32 path 4200000000 4200000000 4200000000", "198.51.100.2/32 path 4200000000 4200000000 4200000000",
			"2001:db8:ffff::1/128 path 4200000000 4200000000 4200000000",
		), l.frr.table)
		await(t, "BIRD's table", lines("198.51.100.1/32", "198.51.100.3/32", "2001:db8:ffff::1/128"), l.bird.table)
		const birdTold = "via 192.0.2.5 path  communities  large  preference 250"
		await(t, "BIRD", birdTold, func() string { return l.bird.route(both4) })
		if med := l.bird.Show("show route all for " + both4); !strings.Contains(med, "BGP.med: 77") {
			t.Errorf("BIRD has no MED 77:\n%s", med)
		}
		var frrTold struct {
			Paths []struct{ Metric uint32 }
		}
		l.frr.ShowJSON("show bgp ipv4 unicast "+both4, &frrTold)
		if len(frrTold.Paths) != 1 || frrTold.Paths[0].Metric != 77 {
			t.Errorf("FRR has %+v, want one path with MED 77", frrTold.Paths)
		}

		nstest.Until(t, patience, "both routers have sent routes", func() bool {
			return counted(s, "frr4").Ignored >= 2 && counted(s, "bird4").Ignored >= 2 && counted(s, "bird6").Ignored >= 1
		})
		before := lines(l.frr.table(), l.bird.table())

		// A Service more is one route more, and no session less.
		up := since(s)
		set(t, s, desire(l.peers(), append(routes, route("198.51.100.9/32", "bird4", "frr4"))...))
		await(t, "FRR", viaFRR4+frrPlain, func() string { return l.frr.route("198.51.100.9/32") })
		await(t, "BIRD", viaBIRD4+birdPlain, func() string { return l.bird.route("198.51.100.9/32") })
		set(t, s, desire(l.peers(), routes...))
		await(t, "both tables", before, func() string { return lines(l.frr.table(), l.bird.table()) })
		if diff := cmp.Diff(up, since(s)); diff != "" || len(up) != 4 {
			t.Errorf("sessions were opened again:\n%s", diff)
		}
	})
}
