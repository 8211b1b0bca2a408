package layer2

import (
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// within is how long tests wait on a busy machine.
const within = 30 * time.Second

// network is our link eth0 and a host that asks us, on a fake wire or a real one.
type network interface {
	// ask resolves an address like the host, and returns the MAC, empty without an answer.
	ask(t *testing.T, addr netip.Addr) string
	// setMAC, bounce and remake change eth0: another MAC, down and up, deleted and recreated.
	setMAC(mac link.MAC)
	bounce()
	remake()
	// mac returns eth0's MAC.
	mac() string
}

// testResolve is the same for both.
func testResolve(t *testing.T, n network, r *Responder) {
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

// fakeNetwork asks by frames it writes itself.
type fakeNetwork struct {
	lan *fakeLAN
	r   *Responder
}

func (n *fakeNetwork) ask(t *testing.T, addr netip.Addr) string {
	t.Helper()
	var frame []byte
	if addr.Is4() {
		frame = arpRequest(addr, nil)
	} else {
		frame = ns(addr, nil)
	}
	family := number(lb.FamilyOf(addr))
	w := n.lan.wire("eth0", n.r.protocols[family])
	if w == nil {
		return ""
	}
	handled := func() (sum uint64) {
		for o := range outcomes {
			sum += n.r.counts.requests[family][o].Load()
		}
		return sum
	}
	before := handled()
	select {
	case w.in <- frame:
	case <-w.closed:
		return ""
	}
	nstest.Until(t, within, "outcome", func() bool { return handled() > before })
	for {
		select {
		case f := <-n.lan.out:
			// Only answers go to the asker's own MAC.
			if link.MAC(f[offDestination:offSource]) == askerMAC {
				return link.MAC(f[offSource:offEtherType]).String()
			}
		default:
			return ""
		}
	}
}

func (n *fakeNetwork) change(change func(*link.Link)) {
	l := n.lan.snapshot()[0]
	change(&l)
	n.lan.set(l)
	n.r.Kick()
}

func (n *fakeNetwork) setMAC(mac link.MAC) { n.change(func(l *link.Link) { l.MAC = mac }) }
func (n *fakeNetwork) mac() string         { return n.lan.snapshot()[0].MAC.String() }
func (n *fakeNetwork) remake()             { n.change(func(l *link.Link) { l.Index++ }) }

func (n *fakeNetwork) bounce() {
	n.change(func(l *link.Link) { l.Up = false })
	// The sockets of a link that goes down fail by themselves, unless already closed.
	if w := n.lan.wire("eth0", n.r.protocols[0]); w != nil {
		w.Close()
	}
	n.change(func(l *link.Link) { l.Up = true })
}

func TestResolveOnFakeWire(t *testing.T) {
	lan := newFakeLAN(eth0)
	r := lan.responder()
	defer run(t, r)()
	testResolve(t, &fakeNetwork{lan, r}, r)
}

// realNetwork is a veth pair; the far host's kernel asks.
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

func (n *realNetwork) setMAC(mac link.MAC) { n.node.SetMAC("eth0", mac.String()) }
func (n *realNetwork) mac() string         { return n.node.MAC("eth0").String() }

func (n *realNetwork) bounce() {
	n.node.SetDown("eth0")
	n.node.SetUp("eth0")
	n.node.AddAddress("eth0", "2001:db8::1/64", "fe80::1/64")
}

func (n *realNetwork) remake() {
	n.node.Delete("eth0")
	n.connect()
}
