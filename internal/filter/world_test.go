package filter

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

func testLog(t testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func between(from, to string) lb.Range { return lb.Range{From: addr(from), To: addr(to)} }

// The networks of the world: clients beyond the node's uplink eth0, a pod behind its link pod0, external
// addresses that no link holds, and ClusterIPs.
const (
	client4, client6       = "198.51.100.2", "2001:db8:c::2"
	stranger4, stranger6   = "198.51.100.3", "2001:db8:c::3"
	node4, node6           = "198.51.100.1", "2001:db8:c::1"
	pod4, pod6             = "10.244.0.2", "fd00::2"
	vip4, vip6             = "192.0.2.1", "2001:db8:f::1"
	cluster4, cluster6     = "10.96.0.1", "fd01::1"
	closedVIP4, closedVIP6 = "192.0.2.9", "2001:db8:f::9"
)

// world is a node with a pod, under test, and a client beside it.
type world struct {
	t                 testing.TB
	node, client, pod *nstest.NS
	table             *Table
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, node: nstest.Self(t)}
	w.client = w.node.Attach("eth0", []string{node4 + "/24", node6 + "/64"}, client4+"/24", stranger4+"/24",
		client6+"/64", stranger6+"/64")
	w.pod = w.node.Attach("pod0", []string{"10.244.0.1/24", "fd00::1/64"}, pod4+"/24", pod6+"/64")
	for _, family := range []string{"ipv4", "ipv6"} {
		w.node.Sysctl(family+"/conf/all/forwarding", "1")
	}
	w.node.Sysctl("ipv4/conf/all/rp_filter", "0")
	w.node.Sysctl("ipv4/conf/eth0/rp_filter", "0")
	// What the node cannot place comes back to it from the client, as from any router with a route to the pool.
	w.node.AddDefault(client4, client6)
	w.table = New(testLog(t), func() {})
	return w
}

// nft loads rules that are not ours.
func (w *world) nft(rules string) {
	w.t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		w.t.Skip("no nft here to make the tables of others")
	}
	w.node.Output("nft", rules)
}

// list returns what nft lists of a table, without counters.
func (w *world) list(args ...string) string {
	w.t.Helper()
	return w.node.Output("nft", append([]string{"-s", "list"}, args...)...)
}

// proxy serves the external addresses and the ClusterIPs as kube-proxy does in nftables mode: every port at
// the pod.
func (w *world) proxy() {
	w.t.Helper()
	const table = `
table %[1]s kube-proxy {
	chain services {
		%[1]s daddr { %[2]s, %[3]s } meta l4proto { tcp, udp } th dport { 80, 81, 82 } meta mark set meta mark or 0x4000 dnat to %[4]s
	}
	chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting { type nat hook postrouting priority 100; meta mark and 0x4000 == 0x4000 meta mark set meta mark xor 0x4000 masquerade; }
}`
	w.nft(fmt.Sprintf(table, "ip", vip4, cluster4, pod4) + fmt.Sprintf(table, "ip6", vip6, cluster6, pod6))
}

// set fails the test if the filter cannot be set.
func (w *world) set(d draft) {
	w.t.Helper()
	must(w.t, w.table.Set(d.desired()))
}

// draft is a filter whose lists a test may change.
type draft struct {
	Desired
	Frontends      []lb.Frontend
	Pings, Relayed []netip.Addr
}

func (d draft) desired() Desired {
	lists := map[netip.Addr]*[]lb.Frontend{}
	for _, f := range d.Frontends {
		if lists[f.Address] == nil {
			lists[f.Address] = new([]lb.Frontend)
		}
		*lists[f.Address] = append(*lists[f.Address], f)
	}
	out := d.Desired
	out.Frontends, out.Pings, out.Relayed = lb.MapOf(lists), lb.SetOf(d.Pings...), lb.SetOf(d.Relayed...)
	return out
}

// pools are the guarded ranges of the world.
func pools() []lb.Range {
	return []lb.Range{between("192.0.2.0", "192.0.2.255"), between("2001:db8:f::", "2001:db8:f::ffff")}
}

// tcp is TCP port 80 of an address.
func tcp(a string) lb.Frontend {
	return lb.Frontend{Address: addr(a), Protocol: "TCP", Port: 80, Service: lb.Key{Namespace: "ns", Name: "web"}}
}

// desired is a filter with these frontends.
func desired(frontends ...lb.Frontend) draft {
	return draft{Desired: Desired{Filter: lb.Filter{Guarded: pools()}}, Frontends: frontends}
}

// serve sends back what comes to a port of the pod, TCP and UDP.
func (w *world) serve(ns *nstest.NS, ports ...int) {
	w.t.Helper()
	for _, port := range ports {
		address := fmt.Sprintf(":%d", port)
		ns.Serve(address, func(c net.Conn) { _, _ = io.Copy(c, c) })
		var p net.PacketConn
		var err error
		ns.Do(func() { p, err = net.ListenPacket("udp", address) })
		must(w.t, err)
		w.t.Cleanup(func() { p.Close() })
		go echoes(p)
	}
}

func echoes(p net.PacketConn) {
	buffer := make([]byte, 64<<10)
	for {
		n, from, err := p.ReadFrom(buffer)
		if err != nil {
			return
		}
		_, _ = p.WriteTo(buffer[:n], from)
	}
}

// dial connects from an address of a namespace.
func dial(ns *nstest.NS, network, from, to string, port int, timeout time.Duration) (c net.Conn, err error) {
	ns.Do(func() {
		d := net.Dialer{Timeout: timeout}
		if from != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
			if network == "udp" {
				d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(from)}
			}
		}
		c, err = d.Dial(network, net.JoinHostPort(to, fmt.Sprint(port)))
	})
	return c, err
}

// What a client finds at a port.
const (
	answer  = "answer"
	refused = "refused"
	silence = "silence"
)

// Silence has to last to be silence; all else is waited for.
const (
	silent  = 100 * time.Millisecond
	patient = 5 * time.Second
)

// finds fails the test unless a client at an address finds what it should at a port.
func (w *world) finds(want string, ns *nstest.NS, network, from, to string, port int) {
	w.t.Helper()
	wait := patient
	if want == silence {
		wait = silent
	}
	if got := knock(ns, network, from, to, port, wait); got != want {
		w.t.Errorf("%s %s -> %s port %d: found %s, want %s", network, from, to, port, got, want)
	}
}

func knock(ns *nstest.NS, network, from, to string, port int, wait time.Duration) string {
	c, err := dial(ns, network, from, to, port, wait)
	if err == nil {
		defer c.Close()
		err = talk(c, wait)
	}
	switch {
	case err == nil:
		return answer
	case strings.Contains(err.Error(), "refused"):
		return refused
	// The node's own packets are told at once that a rule dropped them.
	case os.IsTimeout(err), errors.Is(err, unix.EPERM):
		return silence
	}
	return err.Error()
}

// talk sends a line and waits for it to come back.
func talk(c net.Conn, wait time.Duration) error {
	_ = c.SetDeadline(time.Now().Add(wait))
	if _, err := c.Write([]byte("hello")); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 16))
	return err
}

var must = nstest.Must

// serving is a test in a world whose pod serves port 80, behind kube-proxy.
func serving(t *testing.T, test func(t *testing.T, w *world)) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.proxy()
		w.serve(w.pod, 80)
		test(t, w)
	})
}
