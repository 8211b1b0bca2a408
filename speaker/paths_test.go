package main

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/bfd"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/unnumbered"
)

// When a session of BGP may be up, by what BFD knows and whether it is up.
func TestPaths(t *testing.T) {
	up, down, admin := "up", "down", "admin-down"
	for name, tt := range map[string]struct {
		status      *bfd.Status
		established bool
		want        bgp.Path
	}{
		"nothing is known":            {nil, false, bgp.Path{State: down, Hold: bgp.PathUnknown, Why: "BFD is starting"}},
		"nothing is known, BGP is up": {nil, true, bgp.Path{State: down}},
		"never up": {&bfd.Status{State: bfd.Down, Remote: bfd.Down}, false,
			bgp.Path{State: down, Hold: bgp.PathDown, Why: "BFD has not come up: the router does not answer"}},
		"silent for long": {&bfd.Status{State: bfd.Down, Remote: bfd.Down, Ups: 1, Diagnostic: bfd.Expired, Since: pathWait}, false,
			bgp.Path{State: down}},
		"silent for long, BGP is up again": {&bfd.Status{State: bfd.Down, Remote: bfd.Down, Ups: 1, Diagnostic: bfd.Expired, Since: pathWait}, true,
			bgp.Path{State: down}},
		"trouble for long": {&bfd.Status{State: bfd.Down, Remote: bfd.Down, Cause: bfd.NoSocket, Error: "no port", Since: pathWait}, false,
			bgp.Path{State: down, Hold: bgp.PathUnwatched, Why: "BFD: no port"}},
		"the router does not hear for long": {&bfd.Status{State: bfd.Init, Remote: bfd.Down, Since: pathWait}, false,
			bgp.Path{State: down, Hold: bgp.PathDown, Why: "BFD has not come up: the router does not answer"}},
		"never up, BGP is up": {&bfd.Status{State: bfd.Init, Remote: bfd.Down}, true, bgp.Path{State: down}},
		"up":                  {&bfd.Status{State: bfd.Up, Remote: bfd.Up, Ups: 1}, false, bgp.Path{State: up}},
		"failed, BGP is up": {&bfd.Status{State: bfd.Down, Remote: bfd.Down, Ups: 1, Diagnostic: bfd.Expired}, true,
			bgp.Path{State: down, Hold: bgp.PathDown, Why: "BFD: detection time expired"}},
		"failed and coming up, BGP is down": {&bfd.Status{State: bfd.Init, Remote: bfd.Down, Ups: 1, Diagnostic: bfd.Signaled}, false,
			bgp.Path{State: down, Hold: bgp.PathDown, Why: "BFD: neighbor signaled session down"}},
		"router switched it off": {&bfd.Status{State: bfd.Down, Remote: bfd.AdminDown, Ups: 1, Diagnostic: bfd.Signaled, SwitchedOff: true}, true,
			bgp.Path{State: admin}},
		"router switches it on": {&bfd.Status{State: bfd.Init, Remote: bfd.Down, Ups: 1, Diagnostic: bfd.Signaled, SwitchedOff: true}, false,
			bgp.Path{State: admin}},
		"switched off": {&bfd.Status{State: bfd.AdminDown, Remote: bfd.Down, Ups: 1, SwitchedOff: true}, true, bgp.Path{State: admin}},
		"refused": {&bfd.Status{State: bfd.AdminDown, Remote: bfd.Down, Cause: bfd.Refused, Error: "too many"}, false,
			bgp.Path{State: down, Hold: bgp.PathUnwatched, Why: "BFD: too many"}},
		"authenticates": {&bfd.Status{State: bfd.Down, Remote: bfd.Down, Cause: bfd.Authenticates, Error: "it authenticates"}, false,
			bgp.Path{State: down, Hold: bgp.PathDown, Why: "BFD: it authenticates"}},
		"authenticates for long": {&bfd.Status{State: bfd.Down, Remote: bfd.Down, Cause: bfd.Authenticates, Error: "it authenticates", Since: pathWait},
			false, bgp.Path{State: down}},
		"no link for long": {&bfd.Status{State: bfd.Down, Remote: bfd.Down, Cause: bfd.NoLink, Error: "no link", Since: pathWait}, false,
			bgp.Path{State: down}},
		"trouble": {&bfd.Status{State: bfd.Down, Remote: bfd.Down, Cause: bfd.NoSocket, Error: "no port"}, false,
			bgp.Path{State: down, Hold: bgp.PathUnwatched, Why: "BFD: no port"}},
	} {
		wanted := []bfd.Peer{{Name: "a"}}
		statuses := map[string]bfd.Status{}
		if tt.status != nil {
			statuses["a"] = *tt.status
		}
		got := pathsOf(wanted, statuses, map[string]bool{"a": tt.established}, waitsOf(nil, wanted, statuses, time.Now()))
		if diff := cmp.Diff(map[string]bgp.Path{"a": tt.want}, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

// BGP that goes first is not held while BFD comes up, and depends on it from then on. A process of BFD that never reports holds BGP no
// longer than a router that never answers.
func TestReleased(t *testing.T) {
	wanted, now := []bfd.Peer{{Name: "a"}}, time.Now()
	silent := bfd.Status{State: bfd.Down, Remote: bfd.Down, Since: time.Second}
	longSilent, comes := bfd.Status{State: bfd.Down, Remote: bfd.Down, Since: pathWait}, bfd.Status{State: bfd.Init, Remote: bfd.Down}
	up, failed := bfd.Status{State: bfd.Up, Remote: bfd.Up, Ups: 1}, bfd.Status{State: bfd.Down, Remote: bfd.Down, Ups: 1, Diagnostic: bfd.Expired}
	type step struct {
		after       time.Duration
		status      *bfd.Status
		established bool
		want        bgp.Hold
	}
	for name, steps := range map[string][]step{
		"silent": {{0, &silent, false, bgp.PathDown}, {0, &longSilent, false, bgp.Free}, {0, &comes, false, bgp.Free}, {0, &comes, true, bgp.Free},
			{0, &up, true, bgp.Free}, {0, &failed, true, bgp.PathDown}},
		"never reports": {{0, nil, false, bgp.PathUnknown}, {pathWait, nil, false, bgp.Free}},
	} {
		var waits map[string]waiting
		for i, step := range steps {
			statuses := map[string]bfd.Status{}
			if step.status != nil {
				statuses["a"] = *step.status
			}
			waits = waitsOf(waits, wanted, statuses, now.Add(step.after))
			if got := pathsOf(wanted, statuses, map[string]bool{"a": step.established}, waits)["a"].Hold; got != step.want {
				t.Errorf("%s, step %d: hold %v, want %v", name, i, got, step.want)
			}
		}
	}
}

// The kernel knows no way.
func nowhere(netip.Addr, netip.Addr) int { return 0 }

// A session is one across routers with ebgpMultiHop, and within an AS if the router is on no link of the node. TTL security of more than
// one hop makes the session of a router of another AS one, too, and so many hops may be between; the profile may allow more.
func TestBFDPeers(t *testing.T) {
	links := []lb.Interface{{Name: "eth0", Index: 2, Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}}}
	outside := []int{1, 2}
	const near4, far4, near6, far6 = "192.0.2.9", "198.51.100.9", "2001:db8::9", "2001:db8:1::9"
	for _, tt := range []struct {
		address           string
		peerASN           uint32
		ebgpMultiHop      bool
		minTTL, ofProfile uint8
		multiHop          bool
		minimumTTL        uint8
	}{
		{near4, 2, false, 0, 254, false, 254}, {near4, 2, true, 0, 254, true, 254}, {near4, 1, false, 0, 254, false, 254},
		{far4, 2, false, 0, 254, false, 254}, {far4, 2, true, 0, 254, true, 254}, {far4, 1, false, 0, 254, true, 254},
		{near6, 2, false, 0, 254, false, 254}, {near6, 2, true, 0, 254, true, 254}, {near6, 1, false, 0, 254, false, 254},
		{far6, 2, false, 0, 254, false, 254}, {far6, 2, true, 0, 254, true, 254}, {far6, 1, false, 0, 254, true, 254},
		{near4, 2, false, 255, 254, false, 254}, {near4, 2, false, 254, 254, true, 254}, {far4, 2, false, 254, 254, true, 254},
		{far4, 2, false, 250, 254, true, 250}, {far4, 2, false, 254, 63, true, 63}, {far4, 0, false, 254, 254, true, 254},
		{near4, 1, false, 254, 254, false, 254}, {far4, 1, false, 250, 254, true, 250},
	} {
		peer := lb.Peer{Name: "a", Address: netip.MustParseAddr(tt.address), LocalASN: 1, PeerASN: tt.peerASN, MultiHop: tt.ebgpMultiHop, MinTTL: tt.minTTL,
			BFD: &lb.BFD{MinimumTTL: tt.ofProfile}}
		all := bfdPeers([]lb.Peer{peer, {Name: "without"}}, links, outside, nowhere)
		by := outside
		if !tt.multiHop {
			by = link.Toward(links, peer.Address, 0)
		}
		if got := all[0]; len(all) != 1 || got.MultiHop != tt.multiHop || got.MinimumTTL != tt.minimumTTL || !slices.Equal(got.Links, by) {
			t.Errorf("%+v: %+v", tt, got)
		}
		peer.Address, peer.Interface = netip.MustParseAddr("fe80::9%eth0"), "eth0"
		if bfdPeers([]lb.Peer{peer}, links, nil, nowhere)[0].MultiHop {
			t.Errorf("%+v: unnumbered, and across routers", tt)
		}
	}
}

// The session of BFD with an unnumbered peer is one over the link, between addresses without a zone; there is none before
// the router is found.
func TestBFDPeersUnnumbered(t *testing.T) {
	peer := lb.Peer{Name: "a", Interface: "eth0", LocalASN: 1, PeerASN: 1, BFD: &lb.BFD{}}
	lost := peer
	lost.Name, lost.Interface = "b", "eth1"
	found := map[string]unnumbered.Router{
		"eth0": {Address: netip.MustParseAddr("fe80::a%eth0"), Source: netip.MustParseAddr("fe80::1%eth0"), Problem: "two"},
		"eth1": {Problem: "none"},
	}
	peers, routers := resolve([]lb.Peer{peer, lost, {Name: "c", Interface: "eth2"}, {Name: "d"}}, func(link string) unnumbered.Router {
		if r, known := found[link]; known {
			return r
		}
		return unnumbered.Router{Looking: true}
	})
	want := []bfd.Peer{{Name: "a", Address: netip.MustParseAddr("fe80::a"), Source: netip.MustParseAddr("fe80::1"), Interface: "eth0", Links: []int{7}}}
	wanted := bfdPeers(peers, []lb.Interface{{Name: "eth0", Index: 7}}, nil, nowhere)
	if diff := cmp.Diff(want, wanted, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	paths := pathsOf(wanted, map[string]bfd.Status{"a": {State: bfd.Up}}, nil, nil)
	addRouters(paths, routers)
	wantPaths := map[string]bgp.Path{
		"a": {State: "up", Note: "two"}, "b": {Hold: bgp.RouterMissing, Why: "none"}, "c": {Hold: bgp.RouterSought, Why: "looking for a router on the link"},
	}
	if diff := cmp.Diff(wantPaths, paths); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
