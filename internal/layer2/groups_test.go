package layer2

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// fakeKernel holds memberships like the kernel, and counts calls.
type fakeKernel struct {
	joined map[groupMembership]bool
	// refuses are links that reject groups, like those without IPv6.
	refuses map[int]bool
	calls   int
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{joined: make(map[groupMembership]bool), refuses: make(map[int]bool)}
}

func (k *fakeKernel) memberships() (map[groupMembership]bool, error) {
	return maps.Clone(k.joined), nil
}

func (k *fakeKernel) join(m groupMembership) error {
	k.calls++
	if k.refuses[m.index] || k.joined[m] {
		return errors.New("join group: invalid argument")
	}
	k.joined[m] = true
	return nil
}

func (k *fakeKernel) leave(m groupMembership) {
	k.calls++
	delete(k.joined, m)
}

func (*fakeKernel) close() {}

// String returns "group%index", like an address with its scope.
func (m groupMembership) String() string { return fmt.Sprintf("%v%%%d", m.group, m.index) }

func TestGroups(t *testing.T) {
	k := newFakeKernel()
	var repairs atomic.Uint64
	g := newGroups(slog.New(slog.DiscardHandler), k, &repairs)

	group := func(index, n int) groupMembership {
		return groupMembership{index, netip.MustParseAddr(fmt.Sprintf("ff02::1:ff00:%x", n))}
	}
	a, b, c := group(2, 1), group(2, 2), group(3, 1)
	set := func(ms ...groupMembership) map[groupMembership]bool {
		s := make(map[groupMembership]bool)
		for _, m := range ms {
			s[m] = true
		}
		return s
	}
	for _, tt := range []struct {
		name            string
		before          func()
		desired, joined map[groupMembership]bool
		calls           int
		repairs         uint64
	}{
		{"none", func() {}, set(), set(), 0, 0},
		{"join", func() {}, set(a, b), set(a, b), 2, 0},
		{"again", func() {}, set(a, b), set(a, b), 0, 0},
		{"move", func() {}, set(b, c), set(b, c), 2, 0},
		{"lost", func() { delete(k.joined, c) }, set(b, c), set(b, c), 2, 1},
		{"refused", func() { k.refuses[2] = true }, set(a, b, c, group(2, 3)), set(b, c), 1, 1},
		{"no longer refused", func() { k.refuses[2] = false }, set(a, b, c), set(a, b, c), 1, 1},
		{"leave all", func() {}, set(), set(), 3, 1},
	} {
		k.calls = 0
		tt.before()
		g.set(tt.desired)
		g.sync()
		if !maps.Equal(tt.joined, k.joined) {
			t.Errorf("%s: %v, want %v", tt.name, k.joined, tt.joined)
		}
		if k.calls != tt.calls || repairs.Load() != tt.repairs {
			t.Errorf("%s: %d calls and %d repairs, want %d and %d", tt.name, k.calls, repairs.Load(), tt.calls, tt.repairs)
		}
	}
}

func TestParseIGMP6(t *testing.T) {
	got := make(map[string]bool)
	for m := range parseIGMP6([]byte(`1    lo              ff020000000000000000000000000001     1 0000000C 0
2    eth0            ff0200000000000000000001ff000100     1 00000004 0
2    eth0
x    eth0            ff020000000000000000000000000002     1 00000004 0
2    eth0            ff0200000000000000000001ff0001zz     1 00000004 0
`)) {
		got[m.String()] = true
	}
	want := map[string]bool{"ff02::1%1": true, "ff02::1:ff00:100%2": true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// member reports whether the kernel is a member of v6's group on eth0.
func member(t *testing.T, n *realNetwork) bool {
	t.Helper()
	actual, err := (&groupSockets{}).memberships()
	must(t, err)
	return actual[groupMembership{n.node.Link("eth0").Attrs().Index, solicitedNode(v6).addr}]
}

// Groups that the kernel loses are joined again and counted. It loses all of them
// when a link's MTU falls below IPv6's minimum (RFC 8200 section 5). IPv6 comes back
// with the MTU, but the groups do not.
func TestGroupsHeal(t *testing.T) {
	besideHost(t, func(t *testing.T, n *realNetwork) {
		r := realResponder(t)
		r.Set(Desired{Announcements: announcing(ourAnnouncements)})
		nstest.Until(t, within, "group joined", func() bool { return member(t, n) })

		n.node.Output("ip", "link", "set", "eth0", "mtu", "1200")
		if member(t, n) {
			t.Fatal("still a member, so nothing is tested")
		}
		nstest.Until(t, within, "answer without IPv6 on the link", func() bool { return n.ask(t, v6) == n.mac() })
		n.node.Output("ip", "link", "set", "eth0", "mtu", "1500")
		nstest.Until(t, within, "group rejoined", func() bool { return member(t, n) })
		nstest.Until(t, within, "repair counted", func() bool { return r.counters.repairs[repairGroup].Load() > 0 })

		r.Set(Desired{Announcements: announcing(ourAnnouncements[:1])})
		nstest.Until(t, within, "group left", func() bool { return !member(t, n) })
	})
}

// A switch with MLD snooping forwards solicitations only to ports that reported the group.
//
// Trap: an IPv6 address cannot be resolved, since its group is not joined (MetalLB).
func TestSnoopingSwitch(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := &realNetwork{t: t, node: nstest.Self(t), far: nstest.New(t)}
		lan := nstest.New(t)
		nstest.Veth(t, n.node, "eth0", lan, "port0")
		nstest.Veth(t, n.far, "eth0", lan, "port1")
		lan.Bridge("br0", "port0", "port1")
		lan.AddAddress("br0", "fe80::b/64")
		lan.Output("ip", "link", "set", "br0", "type", "bridge",
			"mcast_snooping", "1", "mcast_query_response_interval", "10", "mcast_querier", "1")
		n.node.AddAddress("eth0", "2001:db8::1/64", "fe80::1/64")
		n.far.AddAddress("eth0", "2001:db8::2/64", "fe80::2/64")
		n.far.Sysctl("ipv6/neigh/eth0/retrans_time_ms", "100")

		r := realResponder(t)
		r.Set(Desired{Announcements: announcing(ourAnnouncements)})
		nstest.Until(t, within, "answer through the switch", func() bool { return n.ask(t, v6) == n.mac() })
		// The switch forwards to the port because of the report, not by flooding.
		nstest.Until(t, 2*within, "group known to the switch", func() bool {
			return mdbHas(lan.Output("bridge", "mdb", "show", "dev", "br0"), solicitedNode(v6).addr, "port0")
		})
		for range 20 {
			if got := n.ask(t, v6); got != n.mac() {
				t.Fatalf("answer is %q", got)
			}
		}
	})
}

// mdbHas reports whether a bridge's group table, as iproute2 shows it, has the group on the port.
func mdbHas(table string, group netip.Addr, port string) bool {
	for line := range strings.Lines(table) {
		if strings.Contains(line, "port "+port+" ") && strings.Contains(line, "grp "+group.String()+" ") {
			return true
		}
	}
	return false
}
