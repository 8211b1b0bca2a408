package egress

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

func testLog(t testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// The addresses of the world: a LAN with three nodes and a router, a partner beyond the router, and a network of each
// node with its pods.
const (
	vip4, vip6         = "192.0.2.100", "2001:db8::100"
	router4, router6   = "192.0.2.1", "2001:db8::1"
	partner4, partner6 = "203.0.113.2", "2001:db8:f::2"
	outer4, outer6     = "203.0.113.1", "2001:db8:f::1"
)

// Ports of the partner.
const (
	echoPort = 7
	// bigPort answers each datagram with one of bigSize.
	bigPort = 8
	// bulkPort sends bulkSize.
	bulkPort = 9
	// laterPort sends a line each time the test says so.
	laterPort = 10

	bigSize  = 5000
	bulkSize = 30 << 20
)

// pair is an address of each family.
type pair struct{ v4, v6 string }

var vips, partners = pair{vip4, vip6}, pair{partner4, partner6}

func (p pair) all() []string { return []string{p.v4, p.v6} }

// of returns the address of the same family as another.
func (p pair) of(other string) string {
	if addr(other).Is4() {
		return p.v4
	}
	return p.v6
}

// node is a node of the cluster, with a Translator.
type node struct {
	*nstest.NS
	number     int
	translator *Translator
	pods       []*pod
}

// pod is a pod of a node.
type pod struct {
	*nstest.NS
	pair
	// link is the node's end of the pod's veth.
	link string
	// uid and closed are UID and Closed of its sources.
	uid, closed string
}

// address returns the node's address of a family, as another address has it.
func (n *node) address() pair {
	return pair{fmt.Sprint("192.0.2.1", n.number), fmt.Sprintf("2001:db8::1%d", n.number)}
}

// first is the first port of the node's slice.
func (n *node) first() uint16 { return uint16(8+n.number) * lb.SlicePorts }

// world is a cluster of three nodes; the test runs in the first one.
type world struct {
	t                    testing.TB
	lan, router, partner *nstest.NS
	nodes                []*node
	// core is the router of the nodes' own network, if they have one. Desired states have ways, and also inside.
	core   *nstest.NS
	ways   []lb.EgressWay
	inside []netip.Prefix
	// excluded is the link on which no node may announce.
	excluded string
	// say makes the partner send a line on every connection to laterPort.
	say chan struct{}
}

func newWorld(t testing.TB) *world {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("no nft here to make the tables of others")
	}
	w := &world{t: t, lan: newHost(t), router: newHost(t), say: make(chan struct{})}
	w.lan.Bridge("br0")
	w.join(w.router, "router")
	w.router.AddAddress("eth0", router4+"/24", router6+"/64")
	w.partner = newHost(t)
	nstest.Veth(t, w.router, "outer", w.partner, "eth0")
	w.router.AddAddress("outer", outer4+"/24", outer6+"/64")
	w.partner.AddAddress("eth0", partner4+"/24", partner6+"/64")
	w.partner.AddDefault(outer4, outer6)
	forward(w.router)
	for i := 1; i <= 3; i++ {
		w.addNode(i)
	}
	w.owner(w.nodes[1])
	w.serve()
	return w
}

// newHost makes a namespace whose links are usable at once: without duplicate address detection.
func newHost(t testing.TB) *nstest.NS { return ready(nstest.New(t)) }

func ready(ns *nstest.NS) *nstest.NS {
	ns.Sysctl("ipv6/conf/default/accept_dad", "0")
	return ns
}

// join gives a namespace a link to the LAN.
func (w *world) join(ns *nstest.NS, name string) {
	nstest.Veth(w.t, ns, "eth0", w.lan, name)
	w.lan.Enslave(name, "br0")
}

func forward(ns *nstest.NS) {
	ns.Sysctl("ipv4/conf/all/forwarding", "1")
	ns.Sysctl("ipv6/conf/all/forwarding", "1")
}

// addNode adds a node that drops what conntrack does not know, whose policy is to drop what it forwards, and that
// masquerades what pods send out of the cluster.
func (w *world) addNode(number int) {
	n := &node{NS: newHost(w.t), number: number}
	if number == 1 {
		n.NS = ready(nstest.Self(w.t))
	}
	w.join(n.NS, fmt.Sprint("node", number))
	n.AddAddress("eth0", n.address().v4+"/24", n.address().v6+"/64")
	n.AddDefault(router4, router6)
	forward(n.NS)
	n.Sysctl("ipv4/conf/all/rp_filter", "1") // strict: an answer must come in where the packet went out
	for _, f := range []struct{ family, pods, cluster, pod string }{
		{"ip", "10.244.0.0/16", "10.96.0.1", "10.244.1.2"}, {"ip6", "fd00::/16", "fd01::1", "fd00:1::2"},
	} {
		n.Output("nft", fmt.Sprintf(`
table %[1]s others {
	chain services { type nat hook prerouting priority -100; %[1]s daddr %[3]s tcp dport 80 meta mark set meta mark or 0x4000 dnat to %[4]s; }
	chain forward {
		type filter hook forward priority 0; policy drop;
		ct state invalid drop
		ct state established,related accept
		%[1]s saddr %[2]s accept
		%[1]s daddr %[2]s accept
	}
	chain outgoing { type nat hook postrouting priority 100; %[1]s saddr %[2]s %[1]s daddr != %[2]s masquerade fully-random; }
}`, f.family, f.pods, f.cluster, f.pod))
	}
	n.translator = New(Config{Log: testLog(w.t), Links: func() []lb.Interface { return w.links(n) }})
	w.nodes = append(w.nodes, n)
}

// links are the links of a node, as package link reads them.
func (w *world) links(n *node) (out []lb.Interface) {
	list, err := n.Netlink().LinkList()
	must(w.t, err)
	for _, l := range list {
		a := l.Attrs()
		isPod := strings.HasPrefix(a.Name, "pod") || strings.HasPrefix(a.Name, "cni")
		out = append(out, lb.Interface{
			Index: a.Index, Name: a.Name, MAC: lb.MACFrom(a.HardwareAddr), Up: a.Flags&net.FlagUp != 0,
			Loopback: a.Flags&net.FlagLoopback != 0, Port: a.MasterIndex != 0, NoClients: isPod || a.Name == w.excluded,
			Default: w.core != nil && a.Name == "eth1",
		})
	}
	return out
}

// addPod adds a pod with a host route to its veth, as Calico, kindnet and the ptp plugin make it.
func (w *world) addPod(n *node, number int) *pod {
	w.t.Helper()
	p := w.newPod(n, number)
	n.Sysctl("ipv4/conf/"+p.link+"/rp_filter", "1")
	n.AddAddress(p.link, "169.254.1.1/32", "fe80::1/64")
	p.AddAddress("eth0", p.v4+"/32", p.v6+"/128")
	n.Output("ip", "route", "add", p.v4, "dev", p.link)
	n.Output("ip", "route", "add", p.v6, "dev", p.link)
	p.Output("ip", "route", "add", "169.254.1.1", "dev", "eth0")
	p.Output("ip", "route", "add", "default", "via", "169.254.1.1")
	p.Output("ip", "route", "add", "default", "via", "fe80::1", "dev", "eth0")
	return p
}

// newPod adds a pod whose veth has no addresses yet.
func (w *world) newPod(n *node, number int) *pod {
	w.t.Helper()
	p := &pod{
		NS:   newHost(w.t),
		pair: pair{fmt.Sprintf("10.244.%d.%d", n.number, number), fmt.Sprintf("fd00:%d::%d", n.number, number)},
		link: fmt.Sprint("pod", number),
		uid:  "former",
	}
	nstest.Veth(w.t, n.NS, p.link, p.NS, "eth0")
	n.pods = append(n.pods, p)
	return p
}

// addBridge makes the node's bridge of pods, as the bridge plugin and flannel make it.
func (w *world) addBridge(n *node) {
	w.t.Helper()
	n.Bridge("cni0")
	// Else the bridge takes the MAC of another port when a port goes.
	n.Output("ip", "link", "set", "cni0", "address", fmt.Sprintf("02:00:00:00:01:0%d", n.number))
	n.AddAddress("cni0", fmt.Sprintf("10.244.%d.1/24", n.number), fmt.Sprintf("fd00:%d::1/64", n.number))
}

// addBridged adds a pod behind the bridge.
func (w *world) addBridged(n *node, number int) *pod {
	w.t.Helper()
	p := w.newPod(n, number)
	n.Enslave(p.link, "cni0")
	p.AddAddress("eth0", p.v4+"/24", p.v6+"/64")
	p.AddDefault(fmt.Sprintf("10.244.%d.1", n.number), fmt.Sprintf("fd00:%d::1", n.number))
	return p
}

// removePod ends a pod.
func (w *world) removePod(n *node, p *pod) {
	w.t.Helper()
	n.Delete(p.link)
	for i, other := range n.pods {
		if other == p {
			n.pods = append(n.pods[:i:i], n.pods[i+1:]...)
			return
		}
	}
}

// owner makes the router take a node for the owner of the addresses.
func (w *world) owner(n *node) {
	w.t.Helper()
	for _, vip := range vips.all() {
		w.router.Output("ip", "neigh", "replace", vip, "lladdr", n.MAC("eth0").String(), "dev", "eth0", "nud", "permanent")
	}
}

// desired is the desired state of a node: all of its pods send from the addresses.
func (w *world) desired(n *node) Desired {
	d := Desired{Speakers: map[lb.MAC]bool{}}
	d.Inside = []netip.Prefix{prefix("10.244.0.0/16"), prefix("fd00::/16"), prefix("10.96.0.0/16"), prefix("fd01::/64")}
	d.Inside = append(d.Inside, w.inside...)
	d.Ways = w.ways
	for _, p := range n.pods {
		for _, a := range p.all() {
			d.Sources = append(d.Sources, lb.EgressSource{
				Pod: addr(a), Service: lb.Key{Namespace: "ns", Name: "web"}, Address: addr(vips.of(a)), First: n.first(),
				UID: p.uid, Link: "eth0", Closed: p.closed,
			})
		}
	}
	for _, other := range w.nodes {
		d.Speakers[lb.MACFrom(other.MAC("eth0"))] = true
		for _, a := range other.address().all() {
			d.Nodes = append(d.Nodes, addr(a), addr(other.linkLocal()))
			if other != n {
				pass := lb.EgressPass{Address: addr(vips.of(a)), First: other.first(), Via: addr(a), Link: "eth0"}
				d.Passes = append(d.Passes, pass)
			}
		}
	}
	return d
}

// set gives every node its desired state.
func (w *world) set() {
	w.t.Helper()
	for _, n := range w.nodes {
		d := w.desired(n)
		n.Do(func() { n.translator.Set(d) })
	}
}

// serve starts what the partner serves.
func (w *world) serve() {
	w.partner.Serve(fmt.Sprintf(":%d", echoPort), whoami)
	w.partner.Serve(fmt.Sprintf(":%d", bulkPort),
		func(c net.Conn) { _, _ = io.Copy(c, io.LimitReader(zeros{}, bulkSize)) })
	w.partner.Serve(fmt.Sprintf(":%d", laterPort), func(c net.Conn) {
		<-w.say
		_, _ = c.Write([]byte("later\n"))
		_, _ = io.Copy(c, c)
	})
	for port, size := range map[int]int{echoPort: 0, bigPort: bigSize} {
		var p net.PacketConn
		var err error
		w.partner.Do(func() { p, err = net.ListenPacket("udp", fmt.Sprintf(":%d", port)) })
		must(w.t, err)
		w.t.Cleanup(func() { p.Close() })
		go answer(p, size)
	}
}

// zeros is an endless Reader.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// whoami answers each line with the address of the client.
func whoami(c net.Conn) {
	for lines := bufio.NewScanner(c); lines.Scan(); {
		if _, err := fmt.Fprintln(c, c.RemoteAddr()); err != nil {
			return
		}
	}
}

// answer answers each datagram with the address of the client, or with one of a size.
func answer(p net.PacketConn, size int) {
	buffer := make([]byte, 64<<10)
	for {
		_, from, err := p.ReadFrom(buffer)
		if err != nil {
			return
		}
		text := []byte(from.String() + "\n")
		if size > 0 {
			text = make([]byte, size)
		}
		_, _ = p.WriteTo(text, from)
	}
}

const patient = 5 * time.Second

// silent has to last to be silence; all else is waited for.
const silent = 300 * time.Millisecond

var must = nstest.Must

// try connects to a port of the partner.
func (p *pod) try(network, to string, port int, wait time.Duration) (c net.Conn, err error) {
	return p.tryFrom(network, 0, to, port, wait)
}

func (p *pod) tryFrom(network string, from int, to string, port int, wait time.Duration) (c net.Conn, err error) {
	p.Do(func() {
		d := net.Dialer{Timeout: wait}
		ip := net.ParseIP(p.of(to))
		d.LocalAddr = &net.TCPAddr{IP: ip, Port: from}
		if network == "udp" {
			d.LocalAddr = &net.UDPAddr{IP: ip, Port: from}
		}
		c, err = d.Dial(network, net.JoinHostPort(to, fmt.Sprint(port)))
	})
	return c, err
}

// dial connects, which must work.
func (p *pod) dial(t testing.TB, network, to string, port int) net.Conn {
	t.Helper()
	c, err := p.try(network, to, port, patient)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// ask sends a line and returns the source that the partner saw.
func ask(c net.Conn, wait time.Duration) (netip.AddrPort, error) {
	_ = c.SetDeadline(time.Now().Add(wait))
	if _, err := c.Write([]byte("hello\n")); err != nil {
		return netip.AddrPort{}, err
	}
	buffer := make([]byte, 100)
	n, err := c.Read(buffer)
	if err != nil {
		return netip.AddrPort{}, err
	}
	source, err := netip.ParseAddrPort(strings.TrimSpace(string(buffer[:n])))
	return netip.AddrPortFrom(source.Addr().Unmap(), source.Port()), err
}

// translated fails the test unless the partner sees the address and a port of the node's slice.
func (w *world) translated(n *node, c net.Conn) {
	w.t.Helper()
	got, err := ask(c, patient)
	must(w.t, err)
	slice := lb.PortSlice{Address: addr(vips.of(host(c))), First: n.first()}
	if got.Addr() != slice.Address || !slice.Has(got.Port()) {
		w.t.Errorf("%s: the partner sees %v, want %v and a port from %d on", c.RemoteAddr(), got, slice.Address, slice.First)
	}
}

// host is the address that a connection leads to.
func host(c net.Conn) string {
	h, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	return h
}

// list returns what nft shows of one of our tables, without counters.
func (n *node) list(family string) string {
	out, err := n.Command("nft", "-s", "list", "table", family, tableName).CombinedOutput()
	if err != nil {
		return "none"
	}
	return string(out)
}

// linkLocal returns the node's link-local address on the LAN.
func (n *node) linkLocal() string {
	for _, field := range strings.Fields(n.Output("ip", "-6", "-o", "address", "show", "dev", "eth0", "scope", "link")) {
		if p, err := netip.ParsePrefix(field); err == nil {
			return p.Addr().String()
		}
	}
	return ""
}

// swept reports whether the Translator has begun all sweeps.
func (n *node) swept() bool {
	c := n.translator.conntrack
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue) == 0
}

// rejected returns how many packets the node has refused.
func (n *node) rejected() (count uint64) {
	for _, f := range n.translator.State().Families {
		count += f.Rejected
	}
	return count
}

// each calls f with each transport and address of the partner.
func each(t *testing.T, f func(t *testing.T, network, to string)) {
	for _, network := range []string{"tcp", "udp"} {
		for _, to := range partners.all() {
			f(t, network, to)
		}
	}
}
