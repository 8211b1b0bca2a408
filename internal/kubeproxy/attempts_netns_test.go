package kubeproxy

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// long is what may pass on a busy machine; the client's kernel asks again after 1, 3 and 7 s.
const long = 30 * time.Second

// TestForgetAttempts: a client that asks for an endpoint which is gone gets its answer from
// another as soon as its kernel asks again; what waits for other endpoints, or is connected, stays.
func TestForgetAttempts(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, w := range attemptWorlds {
			t.Run(w.family, w.test)
		}
	})
}

// attemptWorld is one family's addresses: a client, the node between, and endpoints of a
// Service, of which one lives.
type attemptWorld struct {
	family                                      string
	bits                                        int
	client, node, service, live, dead, alsoDead string
}

var attemptWorlds = []attemptWorld{
	{"ip", 32, "192.0.2.1", "192.0.2.2", "198.51.100.1", "192.0.2.3", "192.0.2.4", "192.0.2.5"},
	{"ip6", 128, "2001:db8::1", "2001:db8::2", "2001:db8:1::1", "2001:db8::3", "2001:db8::4", "2001:db8::5"},
}

func (w attemptWorld) test(t *testing.T) {
	node, client, pods := nstest.Self(t), nstest.New(t), nstest.New(t)
	w.connect(t, node, client, pods)
	pods.Serve(net.JoinHostPort(w.live, "80"), func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	w.lead(node, w.alsoDead)
	other := w.ask(t, client)
	w.lead(node, w.dead)
	stuck := w.ask(t, client)
	w.lead(node, w.live)
	connected := w.ask(t, client)
	nstest.Until(t, long, "an answer of the live endpoint", connected.answered)

	if n := w.forget(t, w.live); n != 0 {
		t.Errorf("%d connections were forgotten, though they are connected", n)
	}
	nstest.Until(t, long, "the entry of who waits", func() bool { return w.forget(t, w.dead) == 1 })
	nstest.Until(t, long, "an answer to who asked for a dead endpoint", stuck.answered)
	if other.answered() {
		t.Error("who waits for another endpoint got an answer: the test shows nothing")
	}
	if n := w.forget(t, w.alsoDead); n != 1 {
		t.Errorf("%d entries wait for the other endpoint, want 1", n)
	}
}

func (w attemptWorld) connect(t *testing.T, node, client, pods *nstest.NS) {
	single := func(a string) string { return fmt.Sprintf("%s/%d", a, w.bits) }
	nstest.Veth(t, node, "client"+w.family, client, "eth0")
	nstest.Veth(t, node, "pods"+w.family, pods, "eth0")
	// IPv6 answers neighbors only for addresses of the link itself.
	node.AddAddress("client"+w.family, single(w.node))
	node.AddAddress("pods"+w.family, single(w.node))
	client.AddAddress("eth0", single(w.client))
	pods.AddAddress("eth0", single(w.live))
	node.Output("ip", "route", "add", single(w.client), "dev", "client"+w.family)
	for _, a := range []string{w.live, w.dead, w.alsoDead} {
		node.Output("ip", "route", "add", single(a), "dev", "pods"+w.family)
	}
	for _, ns := range []*nstest.NS{client, pods} {
		ns.Output("ip", "route", "add", single(w.node), "dev", "eth0")
		ns.AddDefault(w.node)
	}
	// As with a node that went a moment ago, packets go out and nothing comes back.
	for _, a := range []string{w.dead, w.alsoDead} {
		node.Output("ip", "neigh", "add", a, "lladdr", "02:00:00:00:00:99", "dev", "pods"+w.family)
	}
	node.Sysctl("ipv4/ip_forward", "1")
	node.Sysctl("ipv6/conf/all/forwarding", "1")
}

// lead has new connections to the Service go to an endpoint, as kube-proxy does.
func (w attemptWorld) lead(node *nstest.NS, endpoint string) {
	node.Output("nft", fmt.Sprintf("table %[1]s t; delete table %[1]s t; table %[1]s t { chain c { type nat hook "+
		"prerouting priority -100; %[1]s daddr %[2]s "+
		"dnat to %[3]s; }; }",
		w.family, w.service, endpoint))
}

func (w attemptWorld) forget(t *testing.T, endpoint string) int {
	t.Helper()
	n, err := forgetAttempts(map[netip.Addr]bool{netip.MustParseAddr(endpoint): true})
	must(t, err)
	return n
}

// attempt is a socket that is being connected.
type attempt int

// ask begins to connect to the Service.
func (w attemptWorld) ask(t *testing.T, client *nstest.NS) attempt {
	var fd int
	client.Do(func() {
		to := netip.MustParseAddr(w.service)
		domain, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: to.As16(), Port: 80})
		if to.Is4() {
			domain, sa = unix.AF_INET, &unix.SockaddrInet4{Addr: to.As4(), Port: 80}
		}
		var err error
		if fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		if err := unix.Connect(fd, sa); err != unix.EINPROGRESS {
			t.Fatalf("connect: %v", err)
		}
	})
	t.Cleanup(func() { unix.Close(fd) })
	return attempt(fd)
}

// answered reports whether the connection is there.
func (a attempt) answered() bool {
	_, err := unix.Getpeername(int(a))
	return err == nil
}

// fill makes entries of answered connections, which no sweep concerns, and returns how many the kernel took.
func fill(tb testing.TB, entries int) int {
	tb.Helper()
	server := net.IPv4(198, 51, 100, 1).To4()
	for i := range entries {
		client := net.IPv4(10, byte(i>>16), byte(i>>8), byte(i)).To4()
		flow := &netlink.ConntrackFlow{
			FamilyType: unix.AF_INET, TimeOut: 3600, ProtoInfo: &netlink.ProtoInfoTCP{State: 3}, // established
			Forward: netlink.IPTuple{SrcIP: client, DstIP: server, SrcPort: 1024, DstPort: 80, Protocol: unix.IPPROTO_TCP},
			Reverse: netlink.IPTuple{SrcIP: server, DstIP: client, SrcPort: 80, DstPort: 1024, Protocol: unix.IPPROTO_TCP},
		}
		if err := netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, flow); err != nil {
			tb.Logf("the kernel takes no more: %v", err)
			return i
		}
	}
	return entries
}

// lostOne is a pod of both families.
var lostOne = map[netip.Addr]bool{netip.MustParseAddr("192.0.2.4"): true, netip.MustParseAddr("2001:db8::4"): true}

func forgetNothing(tb testing.TB) {
	if n, err := forgetAttempts(lostOne); n != 0 || err != nil {
		tb.Errorf("%d entries deleted, error %v", n, err)
	}
}

// TestForgetInALargeTable: the cost of a sweep does not grow with the table: the kernel shows only what waits.
func TestForgetInALargeTable(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		few := testing.AllocsPerRun(5, func() { forgetNothing(t) })
		if n := fill(t, 5000); n < 5000 {
			t.Skipf("only %d entries fit", n)
		}
		many := testing.AllocsPerRun(5, func() { forgetNothing(t) })
		t.Logf("%.0f allocations, %.0f with an empty table", many, few)
		if many > 2*few {
			t.Errorf("%.0f allocations, and %.0f in an empty table", many, few)
		}
	})
}
