package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// first and second are routes of IPv4, six is one of IPv6.
var first, second, six = netip.MustParsePrefix("198.51.100.1/32"), netip.MustParsePrefix("198.51.100.2/32"),
	netip.MustParsePrefix("2001:db8:ffff::1/128")

// testEngine is an engine whose router never answers, with some routes.
func testEngine(t *testing.T, router string, dualStack bool, routes ...netip.Prefix) *engine {
	t.Helper()
	p := lb.Peer{
		Name: "r", Address: netip.MustParseAddr(router), Port: 1, RouterID: netip.MustParseAddr("192.0.2.1"), LocalASN: 65000,
		PeerASN:  65001,
		HoldTime: 90 * time.Second, ConnectTime: time.Second, DualStack: dualStack, GracefulRestart: dualStack,
	}
	e, err := start(p)
	must(t, err)
	o := lb.Order{Peer: &p}
	for _, prefix := range routes {
		o.Put = append(o.Put, lb.Route{Prefix: prefix})
	}
	e.holds(t, o, "at first", []netip.Prefix{})
	return e
}

// holds gives an engine an order, and checks what GoBGP has then; no prefixes at all are not checked.
func (e *engine) holds(t *testing.T, o lb.Order, what string, prefixes []netip.Prefix) lb.Notice {
	t.Helper()
	notice, lost, err := e.execute(o)
	if err != nil || lost {
		t.Errorf("%s: lost %t, %v", what, lost, err)
	}
	if len(prefixes) > 0 {
		e.has(t, what, prefixes)
	}
	return notice
}

// has checks what GoBGP has.
func (e *engine) has(t *testing.T, what string, prefixes []netip.Prefix) {
	t.Helper()
	have := map[netip.Prefix]bool{}
	for _, family := range []gobgp.Family{gobgp.RF_IPv4_UC, gobgp.RF_IPv6_UC} {
		must(t, e.gobgp.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL,
			Family: family}, func(nlri gobgp.NLRI, paths []*apiutil.Path) {
			have[nlri.(*gobgp.IPAddrPrefix).Prefix] = len(paths) > 0
		}))
	}
	for _, p := range prefixes {
		if !have[p] {
			t.Errorf("%s: GoBGP does not have %s", what, p)
		}
	}
	if len(have) != len(prefixes) {
		t.Errorf("%s: GoBGP has %v", what, have)
	}
}

// TestLost: goBGP that lost what it was given is an error, which ends the engine; a route that was never placed may be
// removed.
func TestLost(t *testing.T) {
	e := testEngine(t, "127.0.0.9", false, first, second)
	e.holds(t, lb.Order{}, "at first", []netip.Prefix{first, second})
	e.holds(t, lb.Order{Remove: []netip.Prefix{first, six}}, "after a removal", []netip.Prefix{second})
	must(t, e.gobgp.DeletePeer(context.Background(), &api.DeletePeerRequest{Address: e.settings.Address.String()}))
	if n, _, err := e.execute(lb.Order{}); err == nil {
		t.Errorf("without a peer it reports %+v", n)
	}
	if err := e.leave(lb.Leave{}); err != nil {
		t.Error(err)
	}
}

// TestConfirm: what changes while a session comes up is sent again when it is up: GoBGP may have sent its table
// already, and no change yet.
func TestConfirm(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.9:0")
	must(t, err)
	defer listener.Close()
	p := lb.Peer{
		Name: "r", Address: netip.MustParseAddr("127.0.0.9"), Port: uint16(listener.Addr().(*net.TCPAddr).Port),
		RouterID: netip.MustParseAddr("192.0.2.1"), LocalASN: 65000, PeerASN: 65001, HoldTime: 90 * time.Second,
		ConnectTime: time.Second,
	}
	e, err := start(p)
	must(t, err)
	obey := func(o lb.Order) lb.Notice {
		notice, lost, err := e.execute(o)
		if err != nil || lost {
			t.Fatalf("lost %t, %v", lost, err)
		}
		return notice
	}
	obey(lb.Order{Peer: &p, Put: []lb.Route{{Prefix: first}}})
	var conn net.Conn
	nstest.Until(t, 10*time.Second, "the engine dials", func() bool {
		obey(lb.Order{})
		_ = listener.(*net.TCPListener).SetDeadline(time.Now().Add(10 * time.Millisecond))
		conn, err = listener.Accept()
		return err == nil
	})
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	send := func(m *gobgp.BGPMessage, err error) {
		b, failed := m.Serialize()
		if _, unsent := conn.Write(b); err != nil || failed != nil || unsent != nil {
			t.Fatal(err, failed, unsent)
		}
	}
	asn := gobgp.NewOptionParameterCapability([]gobgp.ParameterCapabilityInterface{gobgp.NewCapFourOctetASNumber(65001)})
	send(gobgp.NewBGPOpenMessage(65001, 90, netip.MustParseAddr("192.0.2.250"), []gobgp.OptionParameterInterface{asn}))
	nstest.Until(t, 10*time.Second, "the router's OPEN has come", func() bool {
		return obey(lb.Order{}).Session.State == "openconfirm"
	})
	obey(lb.Order{Put: []lb.Route{{Prefix: second}}, Remove: []netip.Prefix{first}})
	send(gobgp.NewBGPKeepAliveMessage(), nil)
	nstest.Until(t, 10*time.Second, "the session is up", func() bool {
		return obey(lb.Order{}).Session.State == lb.Established
	})

	third := netip.MustParsePrefix("198.51.100.3/32")
	sent := map[netip.Prefix]string{}
	hear := func(prefix netip.Prefix) {
		t.Helper()
		for sent[prefix] == "" {
			m, err := read(conn)
			if err != nil {
				t.Fatalf("after %v: %v", sent, err)
			}
			if u, ok := m.Body.(*gobgp.BGPUpdate); ok {
				for _, n := range u.NLRI {
					sent[n.NLRI.(*gobgp.IPAddrPrefix).Prefix] += "+"
				}
				for _, n := range u.WithdrawnRoutes {
					sent[n.NLRI.(*gobgp.IPAddrPrefix).Prefix] += "-"
				}
			}
		}
	}
	obey(lb.Order{Put: []lb.Route{{Prefix: third}}})
	hear(second)
	hear(third)
	if last := sent[first]; !strings.HasSuffix(last, "-") {
		t.Errorf("of a route that was removed, the router got %q", last)
	}
	sent[second] = "" // GoBGP merges what is in its queue, so this says nothing of a route that was placed
	e.unsure[second] = true
	obey(lb.Order{})
	hear(second)
}

func read(conn net.Conn) (*gobgp.BGPMessage, error) {
	b := make([]byte, gobgp.BGP_MAX_MESSAGE_LENGTH)
	if _, err := io.ReadFull(conn, b[:gobgp.BGP_HEADER_LENGTH]); err != nil {
		return nil, err
	}
	b = b[:binary.BigEndian.Uint16(b[16:])] // the length (RFC 4271 section 4.1)
	if _, err := io.ReadFull(conn, b[gobgp.BGP_HEADER_LENGTH:]); err != nil {
		return nil, err
	}
	return gobgp.ParseBGPMessage(b)
}

// TestMustRestart: an engine ends with its session, but for a router that sent too many routes, for a while.
func TestMustRestart(t *testing.T) {
	const (
		idle, established = api.PeerState_SESSION_STATE_IDLE, api.PeerState_SESSION_STATE_ESTABLISHED
		up, tripped       = api.PeerState_ADMIN_STATE_UP, api.PeerState_ADMIN_STATE_PFX_CT
	)
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	for _, tt := range []struct {
		name  string
		state api.PeerState_SessionState
		admin api.PeerState_AdminState
		lost  time.Time
		want  bool
	}{
		{"never up", idle, up, time.Time{}, false},
		{"up again", established, up, ago(time.Hour), false},
		{"lost", idle, up, ago(0), true},
		{"sent too much", idle, tripped, ago(time.Minute), false},
		{"sent too much long ago", idle, tripped, ago(prefixLimitRest + time.Second), true},
	} {
		peer := &api.Peer{State: &api.PeerState{SessionState: tt.state, AdminState: tt.admin}}
		if got := mustRestart(peer, tt.lost); got != tt.want {
			t.Errorf("%s: spent = %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]uint64{
		9 * time.Second: 9, 1500 * time.Millisecond: 2, time.Millisecond: 1, 0: 0,
	} {
		if got := seconds(d); got != want {
			t.Errorf("%v is %d seconds, want %d: parts count as whole", d, got, want)
		}
	}
}

// greedyArgument makes the test's program confine itself and allocate memory until it dies.
const greedyArgument = "greedy"

func TestMain(m *testing.M) {
	if !slices.Contains(os.Args, greedyArgument) {
		os.Exit(m.Run())
	}
	if err := confine(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	for taken := [][]byte{}; len(taken) < 1024; {
		taken = append(taken, make([]byte, 1<<20)) // the kernel provides no pages, since nothing writes to it
	}
}

// TestConfine: an engine that takes too much memory ends.
func TestConfine(t *testing.T) {
	out, err := exec.Command(os.Args[0], greedyArgument).CombinedOutput()
	text := string(out)
	// The race detector takes memory in a way of its own.
	if err == nil ||
		!strings.Contains(text, "out of memory") && !strings.Contains(text, "ThreadSanitizer failed to allocate") {
		t.Errorf("%v:\n%s", err, text)
	}
}

var must = nstest.Must
