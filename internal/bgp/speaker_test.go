package bgp

import (
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// patience allows for GoBGP's delays: it takes 1.5 s of CPU time for 20,000 routes, of which a busy machine gives it a
// tenth.
const patience = 60 * time.Second

// run starts a Speaker and returns it with a function that stops it as the end of the process does.
func run(t *testing.T) (*Speaker, func()) {
	t.Helper()
	return runWith(t, Config{})
}

func runWith(t *testing.T, c Config) (*Speaker, func()) {
	t.Helper()
	if c.Log == nil {
		c.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	c.Command = testCommand
	if c.Kick == nil {
		c.Kick = func() {}
	}
	s := New(c)
	return s, nstest.Running(t, s.Run)
}

// peer is a peer for a router.
func (r *router) peer(name string, localASN uint32) lb.Peer {
	return lb.Peer{
		Name: name, LocalASN: localASN, PeerASN: r.asn, Address: r.address.Addr(), Port: r.address.Port(),
		HoldTime: 90 * time.Second, ConnectTime: time.Second,
	}
}

func route(prefix string, peers ...string) lb.Route {
	return lb.Route{Prefix: netip.MustParsePrefix(prefix), Peers: peers}
}

func desire(peers []lb.Peer, routes ...lb.Route) Desired {
	lists := map[netip.Prefix]*[]lb.Route{}
	for _, r := range routes {
		if lists[r.Prefix] == nil {
			lists[r.Prefix] = &[]lb.Route{}
		}
		*lists[r.Prefix] = append(*lists[r.Prefix], r)
	}
	// Cloned: a Speaker retains its input, and tests change theirs later.
	return Desired{RouterID: netip.MustParseAddr("192.0.2.1"), Peers: slices.Clone(peers), Routes: lb.MapOf(lists)}
}

// session returns the state of one session.
func session(s *Speaker, peer string) lb.Session {
	for _, session := range s.Sessions() {
		if session.Peer == peer {
			return session
		}
	}
	return lb.Session{}
}

// established waits until the engines have told that these sessions are up: the routers know it first.
func established(t *testing.T, s *Speaker, peers ...string) {
	t.Helper()
	for _, name := range peers {
		nstest.Until(t, patience, name+" is up", func() bool { return session(s, name).State == lb.Established })
	}
}

// refusedAS is what an engine says of a router that expects another AS than 65008.
const refusedAS = "the router refused this node's OPEN with NOTIFICATION 2/2 (open, bad peer as): it expects " +
	"another AS than 65008 of this " +
	"node's address: correct myASN, or the router"

// counted returns what was counted of one session.
func counted(s *Speaker, peer string) lb.SessionCounters {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record(peer).total
}

// await waits for the wanted text, and shows the difference if it does not appear.
func await(t *testing.T, what, want string, get func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for get() != want {
		if time.Now().After(deadline) {
			t.Fatalf("%s (-want +got):\n%s", what, cmp.Diff(want, get()))
		}
		<-tick.C
	}
}

func lines(text ...string) string { return strings.Join(text, "\n") }

// TestAdvertise: each peer receives its own routes with its own attributes, and never the tag.
func TestAdvertise(t *testing.T) {
	outer := newRouter(t, "127.0.0.1", 65001)
	inner := newRouter(t, "127.0.0.2", 65000)
	six := newRouter(t, "::1", 4200000001)
	s, _ := run(t)
	communities := []lb.Community{{A: 65535, B: 65281}, {A: 65000, B: 7}, {Large: true, A: 65000, B: 1, C: 2}}
	s.Set(desire(
		[]lb.Peer{outer.peer("outer", 65010), inner.peer("inner", 65000), six.peer("six", 4200000000)},
		lb.Route{
			Prefix: netip.MustParsePrefix("198.51.100.1/32"), Peers: []string{"inner", "outer"}, LocalPref: 300,
			Communities: communities,
		},
		route("198.51.100.2/32", "inner"),
		route("198.51.100.3/32", "outer", "six", "unknown"),
		route("198.51.100.4/32", "unknown"),
		route("2001:db8::1/128", "six", "outer"),
		lb.Route{Prefix: netip.MustParsePrefix("2001:db8:1::/64"), Peers: []string{"six"}, Communities: communities[:1]},
		// One prefix, with different attributes for each peer.
		lb.Route{Prefix: netip.MustParsePrefix("198.51.100.5/32"), Peers: []string{"inner"}, LocalPref: 200},
		lb.Route{Prefix: netip.MustParsePrefix("198.51.100.5/32"), Peers: []string{"outer"}, Communities: communities[1:2]},
	))
	await(t, "the outer router's table", lines(
		"198.51.100.1/32 igp path [65010] via 127.0.0.1 communities 65535:65281 65000:7 large 65000:1:2",
		"198.51.100.3/32 igp path [65010] via 127.0.0.1",
		"198.51.100.5/32 igp path [65010] via 127.0.0.1 communities 65000:7",
	), outer.table)
	await(t, "the inner router's table", lines(
		"198.51.100.1/32 igp path via 127.0.0.1 preference 300 communities 65535:65281 65000:7 large 65000:1:2",
		"198.51.100.2/32 igp path via 127.0.0.1 preference 100",
		"198.51.100.5/32 igp path via 127.0.0.1 preference 200",
	), inner.table)
	await(t, "the IPv6 router's table", lines(
		"2001:db8:1::/64 igp path [4200000000] communities 65535:65281 via ::1",
		"2001:db8::1/128 igp path [4200000000] via ::1",
	), six.table)
	established(t, s, "outer")
	if got := session(s, "outer"); got.Advertised != 3 || got.Since.IsZero() || got.LastError != "" {
		t.Errorf("session is %+v", got)
	}
}

// TestChange: unchanged routes are not sent again; a change is one update, without a withdrawal. Another router ID
// opens sessions again.
func TestChange(t *testing.T) {
	r, other := newRouter(t, "127.0.0.1", 65001), newRouter(t, "127.0.0.2", 65002)
	s, _ := run(t)
	source := r.peer("r", 65000)
	source.SourceAddress = netip.MustParseAddr("127.0.0.9")
	peers := []lb.Peer{source, other.peer("other", 65000)}
	s.Set(desire(peers, route("198.51.100.1/32", "r"), route("198.51.100.2/32", "r")))
	const plain = " igp path [65000] via 127.0.0.9"
	heard := []string{"+ 198.51.100.1/32" + plain, "+ 198.51.100.2/32" + plain}
	await(t, "first", lines(heard...), r.log)
	established(t, s, "r") // what changes before is sent again: see confirm of package engine

	for range 3 {
		s.Set(desire(peers, route("198.51.100.1/32", "r"), route("198.51.100.2/32", "r")))
	}
	changed := route("198.51.100.2/32", "r")
	changed.Communities = []lb.Community{{A: 1, B: 2}}
	s.Set(desire(peers, route("198.51.100.1/32", "r"), changed))
	heard = append(heard, "+ 198.51.100.2/32"+plain+" communities 1:2")
	await(t, "after a change", lines(heard...), r.log)

	s.Set(desire(peers, route("198.51.100.1/32", "other"), changed))
	heard = append(heard, "- 198.51.100.1/32")
	await(t, "after a route went to the other peer", lines(heard...), r.log)
	await(t, "the other's table", "198.51.100.1/32 igp path [65000] via 127.0.0.1", other.table)

	s.Set(desire(peers[1:], changed))
	heard = append(heard, "notification 6/3", "connection closed")
	await(t, "after the peer was deleted", lines(heard...), r.log)
	await(t, "the other's table", "", other.table)
	if n := other.opened(); n != 1 {
		t.Errorf("the other session was opened %d times", n)
	}
	d := desire(peers[1:], changed)
	d.RouterID = netip.MustParseAddr("192.0.2.2")
	s.Set(d)
	await(t, "router ID of the last OPEN", "192.0.2.2", func() string {
		other.mu.Lock()
		defer other.mu.Unlock()
		return other.opens[len(other.opens)-1].ID.String()
	})
}
