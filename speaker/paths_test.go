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

// BGP that goes first is not held while BFD comes up, and depends on it from then on.
func TestReleased(t *testing.T) {
	wanted := []bfd.Peer{{Name: "a"}}
	var waits map[string]waiting
	for i, step := range []struct {
		status      bfd.Status
		established bool
		held        bool
	}{
		{bfd.Status{State: bfd.Down, Remote: bfd.Down, Since: time.Second}, false, true},
		{bfd.Status{State: bfd.Down, Remote: bfd.Down, Since: pathWait}, false, false},
		{bfd.Status{State: bfd.Init, Remote: bfd.Down}, false, false},
		{bfd.Status{State: bfd.Init, Remote: bfd.Down}, true, false},
		{bfd.Status{State: bfd.Up, Remote: bfd.Up, Ups: 1}, true, false},
		{bfd.Status{State: bfd.Down, Remote: bfd.Down, Ups: 1, Failures: 1, Diagnostic: bfd.Expired}, true, true},
	} {
		statuses := map[string]bfd.Status{"a": step.status}
		waits = waitsOf(waits, wanted, statuses, time.Now())
		got := pathsOf(wanted, statuses, map[string]bool{"a": step.established}, waits)
		if held := got["a"].Hold != bgp.Free; held != step.held {
			t.Errorf("step %d: held %v, want %v", i, held, step.held)
		}
	}
}

// A process of BFD that never reports holds BGP no longer than a router that never answers.
func TestBFDNeverStarts(t *testing.T) {
	wanted, now := []bfd.Peer{{Name: "a"}}, time.Now()
	waits := waitsOf(nil, wanted, nil, now)
	if path := pathsOf(wanted, nil, nil, waits)["a"]; path.Hold != bgp.PathUnknown {
		t.Errorf("at first %+v", path)
	}
	waits = waitsOf(waits, wanted, nil, now.Add(pathWait))
	if path := pathsOf(wanted, nil, nil, waits)["a"]; path.Hold != bgp.Free {
		t.Errorf("after %v %+v", pathWait, path)
	}
}

// The kernel knows no way.
func nowhere(netip.Addr, netip.Addr) int { return 0 }

// A session is one across routers with ebgpMultiHop, and within an AS if the router is on no link of the node.
func TestBFDPeers(t *testing.T) {
	links := []lb.Interface{{Name: "eth0", Index: 2, Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}}}
	outside := []int{1, 2}
	for address, want := range map[string][3]bool{
		// eBGP, eBGP with ebgpMultiHop, iBGP
		"192.0.2.9":     {false, true, false},
		"198.51.100.9":  {false, true, true},
		"2001:db8::9":   {false, true, false},
		"2001:db8:1::9": {false, true, true},
	} {
		peer := lb.Peer{Name: "a", Address: netip.MustParseAddr(address), LocalASN: 1, PeerASN: 2, BFD: &lb.BFD{}}
		multi, inside := peer, peer
		multi.MultiHop, inside.PeerASN = true, 1
		got := bfdPeers([]lb.Peer{peer, multi, inside, {Name: "without"}}, links, outside, nowhere)
		if len(got) != 3 || [3]bool{got[0].MultiHop, got[1].MultiHop, got[2].MultiHop} != want {
			t.Errorf("%s: %+v, want %v", address, got, want)
		}
		for _, p := range got {
			if near := link.Toward(links, p.Address, 0); p.MultiHop && !slices.Equal(p.Links, outside) || !p.MultiHop && !slices.Equal(p.Links, near) {
				t.Errorf("%s: %+v", address, p)
			}
		}
	}
}

// TTL security of more than one hop makes the session of a router of another AS one across routers, and so many hops may be
// between. The profile may allow more.
func TestBFDPeersTTLSecurity(t *testing.T) {
	links := []lb.Interface{{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}}}
	type session struct {
		multiHop   bool
		minimumTTL uint8
	}
	for _, tt := range []struct {
		address           string
		peerASN           uint32
		minTTL, ofProfile uint8
		want              session
	}{
		{"192.0.2.9", 2, 0, 254, session{false, 254}},
		{"192.0.2.9", 2, 255, 254, session{false, 254}},
		{"192.0.2.9", 2, 254, 254, session{true, 254}},
		{"198.51.100.9", 2, 254, 254, session{true, 254}},
		{"198.51.100.9", 2, 250, 254, session{true, 250}},
		{"198.51.100.9", 2, 254, 63, session{true, 63}},
		{"198.51.100.9", 0, 254, 254, session{true, 254}},
		{"192.0.2.9", 1, 254, 254, session{false, 254}},
		{"198.51.100.9", 1, 250, 254, session{true, 250}},
	} {
		peer := lb.Peer{Name: "a", Address: netip.MustParseAddr(tt.address), LocalASN: 1, PeerASN: tt.peerASN, MinTTL: tt.minTTL,
			BFD: &lb.BFD{MinimumTTL: tt.ofProfile}}
		got := bfdPeers([]lb.Peer{peer}, links, nil, nowhere)[0]
		if (session{got.MultiHop, got.MinimumTTL}) != tt.want {
			t.Errorf("%+v: multihop %v, minimum TTL %d", tt, got.MultiHop, got.MinimumTTL)
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
