package layer2

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// lan is two nodes and a far host on a bridge. Each node has a Responder; the far
// host's kernel asks.
type lan struct {
	*realNetwork
	other, bridge *nstest.NS
	// first runs on node, second on other.
	first, second *Responder
}

func newLAN(t *testing.T) *lan {
	l := &lan{realNetwork: &realNetwork{t: t, node: nstest.Self(t), far: nstest.New(t)}, other: nstest.New(t)}
	bridge := nstest.New(t)
	l.bridge = bridge
	nstest.Veth(t, l.node, "eth0", bridge, "port0")
	nstest.Veth(t, l.far, "eth0", bridge, "port1")
	nstest.Veth(t, l.other, "eth0", bridge, "port2")
	bridge.Bridge("br0", "port0", "port1", "port2")
	l.node.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64", "fe80::1/64")
	l.other.AddAddress("eth0", "192.0.2.3/24", "2001:db8::3/64", "fe80::3/64")
	l.far.AddAddress("eth0", asker4.String()+"/24", asker6.String()+"/64", "fe80::2/64")
	l.first, l.second = realResponder(t), responderIn(t, l.other, Timers{})
	return l
}

// speakers are the MACs of both nodes.
func (l *lan) speakers() map[lb.MAC]bool {
	return map[lb.MAC]bool{lb.MACFrom(l.node.MAC("eth0")): true, lb.MACFrom(l.other.MAC("eth0")): true}
}

// elsewhere is the desired state of a node that announces nothing.
func (l *lan) elsewhere() Desired {
	return Desired{Yield: lb.SetOf(v4, v6), Speakers: l.speakers()}
}

func (l *lan) here() Desired {
	return Desired{Announcements: announcing(ourAnnouncements), Speakers: l.speakers()}
}

// responderIn runs a Responder on eth0 of another namespace.
func responderIn(t testing.TB, ns *nstest.NS, timers Timers) *Responder {
	t.Helper()
	return configuredIn(t, ns, Config{Timers: timers})
}

// configuredIn runs a Responder with this configuration, but for its links, on eth0 of another namespace.
func configuredIn(t testing.TB, ns *nstest.NS, c Config) *Responder {
	t.Helper()
	s := realSystem()
	s.listen = func(l lb.Interface, p protocol) (conn frameConn, err error) {
		ns.Do(func() { conn, err = listen(l, p) })
		return conn, err
	}
	s.groups = kernelIn{&groupSockets{}, ns}
	c.Links = func() []lb.Interface { return []lb.Interface{eth0In(ns)} }
	r := quietResponder(c, s)
	t.Cleanup(run(t, r))
	return r
}

func eth0In(ns *nstest.NS) lb.Interface {
	a := ns.Link("eth0").Attrs()
	return lb.Interface{
		Index: a.Index, Name: a.Name, MAC: lb.MACFrom(a.HardwareAddr), Up: a.OperState == netlink.OperUp,
		Prefixes: []netip.Prefix{netip.MustParsePrefix("fe80::3/64")},
	}
}

// kernelIn opens its sockets in a namespace.
type kernelIn struct {
	groupKernel
	ns *nstest.NS
}

func (k kernelIn) join(m groupMembership) (err error) {
	k.ns.Do(func() { err = k.groupKernel.join(m) })
	return err
}

func (k kernelIn) memberships() (got map[groupMembership]bool, err error) {
	k.ns.Do(func() { got, err = k.groupKernel.memberships() })
	return got, err
}

// watch calls saw with each frame of one protocol that arrives at the far host. It
// returns a function that returns how many frames were dropped since its last call.
func watch(t *testing.T, ns *nstest.NS, proto protocol, saw func(frame []byte)) (overflowed func() uint64) {
	t.Helper()
	proto.filter = func(addressCover) []bpf.Instruction { return toUs(pass) }
	w, done := farWire(t, ns, proto), make(chan struct{})
	go func() {
		defer close(done)
		frame := make([]byte, maxFrame)
		for {
			n, err := w.Read(frame)
			if err != nil {
				return
			}
			saw(frame[:n])
		}
	}()
	t.Cleanup(func() { w.Close(); <-done })
	return func() uint64 {
		stats, err := unix.GetsockoptTpacketStats(w.(polledSocket).fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err != nil {
			t.Error(err)
			return 0
		}
		return uint64(stats.Drops)
	}
}

// onLAN is a test with two nodes and a far host on a LAN.
func onLAN(t *testing.T, test func(t *testing.T, l *lan)) {
	nstest.Run(t, func(t *testing.T) { test(t, newLAN(t)) })
}

// besideHost is a test with a node and a far host.
func besideHost(t *testing.T, test func(t *testing.T, n *realNetwork)) {
	nstest.Run(t, func(t *testing.T) { test(t, newRealNetwork(t)) })
}
