package layer2

import (
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// within is how long tests wait on a busy machine.
const within = 30 * time.Second

// TestResolve: a host's kernel resolves exactly the addresses of the last Set, whatever becomes of our link.
func TestResolve(t *testing.T) { nstest.Run(t, testResolve) }

func testResolve(t *testing.T) {
	n := newRealNetwork(t)
	r := realResponder(t)
	expect := func(what string, addr netip.Addr, want string) {
		t.Helper()
		var got string
		nstest.Until(t, within, what+" of "+addr.String(), func() bool { got = n.ask(t, addr); return got == want })
	}
	both := func(what, want string) {
		t.Helper()
		expect(what, v4, want)
		expect(what, v6, want)
	}
	both("silence before Set", "")
	r.Set(Desired{Announcements: ourAnnouncements})
	both("answer", n.mac())

	r.Set(Desired{Announcements: ourAnnouncements[1:]})
	if got := n.ask(t, v4); got != "" {
		t.Errorf("%s answers for an address that was removed", got)
	}
	expect("answer for what stayed", v6, n.mac())

	r.Set(Desired{Announcements: []lb.Announcement{{Address: v4, Links: []string{"eth9"}}, {Address: v6, Links: []string{"eth0"}}}})
	expect("silence on a link not named", v4, "")
	expect("answer on the link named", v6, n.mac())

	r.Set(Desired{Announcements: ourAnnouncements})
	n.setMAC(otherMAC)
	both("answer with the new MAC", otherMAC.String())
	n.bounce()
	both("answer after down and up", n.mac())
	n.remake()
	both("answer of the recreated link", n.mac())
	r.Set(Desired{})
	both("silence after all was removed", "")
}

// realNetwork is a veth pair between our eth0 and a host whose kernel asks.
type realNetwork struct {
	t         *testing.T
	node, far *nstest.NS
}

func newRealNetwork(t *testing.T) *realNetwork {
	n := &realNetwork{t: t, node: nstest.Self(t), far: nstest.New(t)}
	n.connect()
	return n
}

func (n *realNetwork) connect() {
	nstest.Veth(n.t, n.node, "eth0", n.far, "eth0")
	n.node.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64", "fe80::1/64")
	n.far.AddAddress("eth0", asker4.String()+"/24", asker6.String()+"/64", "fe80::2/64")
	for _, family := range []string{"ipv4", "ipv6"} {
		// The kernel gives up after three questions; 1 s apart by default.
		n.far.Sysctl(family+"/neigh/eth0/retrans_time_ms", "100")
	}
}

// ask resolves an address on the host, and returns the MAC, empty without an answer.
func (n *realNetwork) ask(t *testing.T, addr netip.Addr) string {
	t.Helper()
	n.far.Forget("eth0", addr)
	n.far.Send(addr)
	mac := ""
	nstest.Until(t, within, "end of the far kernel's asking", func() bool {
		state, hw := n.far.Neighbor("eth0", addr)
		if state&nstest.Valid != 0 {
			mac = hw.String()
		}
		return state != netlink.NUD_INCOMPLETE
	})
	return mac
}

func (n *realNetwork) setMAC(mac lb.MAC) { n.node.SetMAC("eth0", mac.String()) }
func (n *realNetwork) mac() string       { return n.node.MAC("eth0").String() }

func (n *realNetwork) bounce() {
	n.node.SetDown("eth0")
	n.node.SetUp("eth0")
	n.node.AddAddress("eth0", "2001:db8::1/64", "fe80::1/64")
}

func (n *realNetwork) remake() {
	n.node.Delete("eth0")
	n.connect()
}
