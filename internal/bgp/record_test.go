package bgp

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// A peer that was edited is dialled at once, and its totals stay. An unnumbered one whose router has another address, or none, is
// the same one.
func TestRecordOfOtherSettings(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	settings := wire.Settings{Name: "r", Interface: "eth0", Address: netip.MustParseAddr("fe80::1%eth0"), Source: netip.MustParseAddr("fe80::9%eth0")}
	var r record
	r.serve(settings)
	r.failures, r.why = 7, "it died"
	for range falls.free() + 1 {
		r.falls.again(now, falls)
	}
	for range len(deaths.waits) {
		r.deaths.again(now, deaths)
	}
	check := func(what string, want bool) {
		t.Helper()
		if d, q, w := r.falls.rests(now), r.quarantined(now), r.why != ""; d != want || q != want || w != want || r.failures != 7 {
			t.Errorf("%s: damped %t, quarantined %t, why %q, %d failures", what, d, q, r.why, r.failures)
		}
	}
	r.serve(settings)
	check("the same settings", true)
	for _, address := range []netip.Addr{{}, netip.MustParseAddr("fe80::2%eth0")} {
		settings.Address = address
		r.serve(settings)
		check("another router", true)
	}
	settings.HoldTime = 9
	r.serve(settings)
	check("other settings", false)
}

// What is known of a peer does not end with a session that is held: deaths add up to a quarantine, which lasts, and so does the
// time when there was a session last. One that was never up never had one. Each death is a fall.
func TestHeld(t *testing.T) {
	good, never := newRouter(t, "127.0.0.1", 65001), newRouter(t, "127.0.0.2", 65002)
	s, _ := run(t)
	hold := func(names ...string) {
		t.Helper()
		paths := map[string]Path{}
		for _, name := range append(names, "never") {
			paths[name] = Path{State: "down", Hold: PathDown, Why: "BFD: detection time expired"}
		}
		s.SetPaths(paths)
		for _, name := range names {
			await(t, name, "idle BFD: detection time expired", func() string { return session(s, name).State + " " + session(s, name).LastError })
		}
	}
	s.SetPaths(map[string]Path{"never": {Hold: PathUnknown, Why: "BFD is starting"}})
	set(t, s, desire([]lb.Peer{never.peer("never", 65000), good.peer("good", 65000)}, route("198.51.100.1/32", "good")))
	pid := 0
	hold()
	for n := range len(deaths.waits) {
		if n < 2 {
			established(t, s, "good")
		}
		pid = strike(t, s, "good", syscall.SIGKILL, pid)
		hold("good")
		if since := session(s, "good").Since; since.IsZero() {
			t.Errorf("after death %d it does not say when there was a session", n+1)
		}
		hold()
	}
	nstest.Until(t, patience, "it is quarantined", func() bool { return session(s, "good").Quarantined })
	opened := good.opened()
	hold("good")
	if is := session(s, "good"); !is.Quarantined || is.Since.IsZero() {
		t.Errorf("in quarantine and held it is %+v", is)
	}
	hold()
	nstest.Until(t, patience, "it says what it died of", func() bool { return session(s, "good").LastError == s.record("good").why })
	if is := session(s, "good"); !is.Quarantined || good.opened() != opened || pidOf(s, "good") != 0 {
		t.Errorf("after that it is %+v", is)
	}
	if is := session(s, "never"); !is.Since.IsZero() || never.opened() != 0 {
		t.Errorf("a session that was never up is %+v", is)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.record("good"); r.restarts != uint64(len(deaths.waits)) || r.failures != 2 || r.total.Ups != 2 {
		t.Errorf("%d deaths, %d failures, %d times up", r.restarts, r.failures, r.total.Ups)
	}
}
