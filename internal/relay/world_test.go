package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/bits"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"golang.org/x/sys/unix"
)

func testLog(t testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// The addresses of the world: one LAN, and a network of each node with its pod.
const (
	vip4, vip6       = "192.0.2.100", "2001:db8::100"
	client4, client6 = "192.0.2.2", "2001:db8::2"
	former4, former6 = "192.0.2.11", "2001:db8::11"
	node4, node6     = "192.0.2.12", "2001:db8::12"
	port             = 80
)

var vips = []string{vip4, vip6}

// world is a LAN with a client and two nodes in front of one pod: the former owner, and the node under test,
// which takes over. Both serve the addresses as kube-proxy does.
type world struct {
	t                         testing.TB
	client, former, node, pod *nstest.NS
	lan                       *nstest.NS
	relayer                   *Relayer
}

func newWorld(t testing.TB) *world {
	w := &world{
		t: t, client: nstest.New(t), former: nstest.New(t), node: nstest.Self(t), pod: nstest.New(t), lan: nstest.New(t),
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("no nft here to make the tables of others")
	}
	for name, ns := range map[string]*nstest.NS{"client": w.client, "former": w.former, "node": w.node} {
		nstest.Veth(t, ns, "eth0", w.lan, name)
	}
	w.lan.Bridge("br0", "client", "former", "node")
	w.client.AddAddress("eth0", client4+"/24", client6+"/64")
	w.former.AddAddress("eth0", former4+"/24", former6+"/64")
	w.node.AddAddress("eth0", node4+"/24", node6+"/64")
	for i, ns := range []*nstest.NS{w.former, w.node} {
		near4, near6 := fmt.Sprintf("10.244.%d.1", i), fmt.Sprintf("fd00:%d::1", i)
		pod4, pod6 := fmt.Sprintf("10.244.%d.2", i), fmt.Sprintf("fd00:%d::2", i)
		nstest.Veth(t, ns, "pod0", w.pod, fmt.Sprint("eth", i))
		ns.AddAddress("pod0", near4+"/24", near6+"/64")
		w.pod.AddAddress(fmt.Sprint("eth", i), pod4+"/24", pod6+"/64")
		ns.Sysctl("ipv4/conf/all/forwarding", "1")
		ns.Sysctl("ipv6/conf/all/forwarding", "1")
		ns.Sysctl("ipv4/conf/all/rp_filter", "1") // strict: an answer must go out where the packet came in
		proxy(ns, "ip", vip4, pod4)
		proxy(ns, "ip6", vip6, pod6)
	}
	w.relayer = New(Config{Log: testLog(t), Links: func() []lb.Interface { return w.links() }})
	return w
}

// proxy serves an address as kube-proxy does in nftables mode, and drops what conntrack cannot place as it
// does when it forwards.
func proxy(ns *nstest.NS, family, vip, pod string) {
	ns.Output("nft", fmt.Sprintf(`
table %[1]s kube-proxy {
	chain services { %[1]s daddr %[2]s tcp dport %[4]d meta mark set meta mark or 0x4000 dnat to %[3]s; }
	chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting { type nat hook postrouting priority 100; meta mark and 0x4000 == 0x4000 meta mark set meta mark xor 0x4000 masquerade random; }
	chain filter-forward { type filter hook forward priority 0; ct state invalid drop; }
}`, family, vip, pod, port))
}

func (w *world) links() []lb.Interface {
	l := w.node.Link("eth0").Attrs()
	return []lb.Interface{{Index: l.Index, Name: l.Name, MAC: lb.MACFrom(l.HardwareAddr), Up: true}}
}

// speakers are the MACs of both nodes.
func (w *world) speakers() map[lb.MAC]bool {
	return map[lb.MAC]bool{lb.MACFrom(w.former.MAC("eth0")): true, lb.MACFrom(w.node.MAC("eth0")): true}
}

// desired relays both addresses to the former owner.
func (w *world) desired() Desired {
	return Desired{Speakers: w.speakers(), Relays: lb.MapOf(map[netip.Addr]lb.Relay{
		addr(vip4): {Address: addr(vip4), Former: "former", Via: addr(former4), Link: "eth0"},
		addr(vip6): {Address: addr(vip6), Former: "former", Via: w.linkLocal(w.former), Link: "eth0"},
	})}
}

// changed returns the same with other relays.
func (d Desired) changed(change func(*lb.Relay)) Desired {
	for a, r := range d.Relays.All() {
		change(&r)
		d.Relays = d.Relays.Put(a, r)
	}
	return d
}

// linkLocal is an address of the node that it surely has on the link.
func (w *world) linkLocal(ns *nstest.NS) netip.Addr {
	w.t.Helper()
	var found netip.Addr
	nstest.Until(w.t, 5*time.Second, "link-local address", func() bool {
		for _, field := range strings.Fields(ns.Output("ip", "-6", "-o", "address", "show", "dev", "eth0", "scope", "link",
			"-tentative")) {
			if p, err := netip.ParsePrefix(field); err == nil {
				found = p.Addr()
			}
		}
		return found.IsValid()
	})
	return found
}

// owner makes the client take a node for who has the addresses.
func (w *world) owner(ns *nstest.NS) {
	w.t.Helper()
	for _, vip := range vips {
		w.client.Output("ip", "neigh", "replace", vip, "lladdr", ns.MAC("eth0").String(), "dev", "eth0", "nud", "permanent")
	}
}

// serve echoes on the pod's port until the test ends.
func (w *world) serve() {
	w.t.Helper()
	w.pod.Serve(fmt.Sprintf(":%d", port), func(c net.Conn) { _, _ = io.Copy(c, c) })
}

const patient = 5 * time.Second

// silent has to last to be silence; all else is waited for.
const silent = 200 * time.Millisecond

// own is the client's first address of a family.
var own = map[bool]string{true: client4, false: client6}

// dial connects from there, which is to work.
func (w *world) dial(to string) net.Conn {
	w.t.Helper()
	return w.dialFrom(own[addr(to).Is4()], to)
}

func (w *world) dialFrom(from, to string) net.Conn {
	w.t.Helper()
	c, err := w.tryFrom(from, to, patient)
	must(w.t, err)
	w.t.Cleanup(func() { c.Close() })
	return c
}

func (w *world) tryFrom(from, to string, wait time.Duration) (c net.Conn, err error) {
	w.client.Do(func() {
		d := net.Dialer{Timeout: wait, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err = d.Dial("tcp", net.JoinHostPort(to, fmt.Sprint(port)))
	})
	return c, err
}

// connections opens so many to each address, and uses them.
func (w *world) connections(n int) map[string][]net.Conn {
	w.t.Helper()
	out := map[string][]net.Conn{}
	for _, vip := range vips {
		for range n {
			c := w.dial(vip)
			must(w.t, talk(c, patient))
			out[vip] = append(out[vip], c)
		}
	}
	return out
}

// talk sends a line and waits for it to come back.
func talk(c net.Conn, wait time.Duration) error {
	_ = c.SetDeadline(time.Now().Add(wait))
	if _, err := c.Write([]byte("hello")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 5))
	return err
}

// alive counts the connections that still work. It fails the test if any other connection was not reset.
func (w *world) alive(list []net.Conn) (n int) {
	w.t.Helper()
	for _, c := range list {
		switch err := talk(c, patient); {
		case err == nil:
			n++
		case !errors.Is(err, syscall.ECONNRESET):
			w.t.Errorf("connection of %s: %v", c.LocalAddr(), err)
		}
	}
	return n
}

// allAlive fails the test unless all connections still work.
func (w *world) allAlive(open map[string][]net.Conn) {
	w.t.Helper()
	for vip, list := range open {
		if n := w.alive(list); n != len(list) {
			w.t.Errorf("%s: of %d connections %d are alive", vip, len(list), n)
		}
	}
}

// packets returns how many were relayed, of each family.
func (w *world) packets() (out []uint64) {
	for _, f := range w.relayer.State().Families {
		out = append(out, f.Packets)
	}
	return out
}

// mirror makes the former owner relay to the node what the node relays to it.
func (w *world) mirror() {
	w.t.Helper()
	other := strings.NewReplacer(former4, node4, w.linkLocal(w.former).String(), w.linkLocal(w.node).String(),
		// The index of eth0 as nft reads it, and as it shows it where it is not told the order of octets.
		fmt.Sprint(bits.ReverseBytes32(uint32(w.node.Link("eth0").Attrs().Index))), "eth0")
	for _, family := range []string{"ip", "ip6"} {
		w.former.Output("nft", other.Replace(w.list(family)))
	}
}

// list returns what nft shows of one of our tables, without counters.
func (w *world) list(family string) string {
	out, err := w.node.Command("nft", "-s", "list", "table", family, tableName).CombinedOutput()
	if err != nil {
		return "none"
	}
	return string(out)
}

// tcpACK is the flag of a segment that acknowledges.
const tcpACK = 0x10

// stray sends a TCP segment of no connection: an acknowledgement.
func (w *world) stray(to string) { w.segment(to, 50000, 0, tcpACK) }

// segment sends a TCP segment without data (RFC 9293 section 3.1).
func (w *world) segment(to string, from uint16, sequence uint32, flags byte) {
	w.t.Helper()
	const flagsAt = 13
	segment := make([]byte, 20)
	binary.BigEndian.PutUint16(segment[0:], from)
	binary.BigEndian.PutUint16(segment[2:], port)
	binary.BigEndian.PutUint32(segment[4:], sequence)
	segment[12], segment[flagsAt] = 5<<4, flags // five words
	pseudo := slices.Concat(addr(own[addr(to).Is4()]).AsSlice(), addr(to).AsSlice(), []byte{
		0, unix.IPPROTO_TCP, 0, byte(len(segment)),
	})
	binary.BigEndian.PutUint16(segment[16:], checksum(append(pseudo, segment...)))
	w.raw("tcp", to, segment)
}

// tooBig tells a connection's other end that one of its packets did not fit (RFC 792, RFC 4443 section 3.2).
func (w *world) tooBig(c net.Conn) {
	w.t.Helper()
	from, to := c.RemoteAddr().(*net.TCPAddr), c.LocalAddr().(*net.TCPAddr)
	const mtu = 1300
	ports := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, uint16(from.Port)), uint16(to.Port))
	rest := append(ports, make([]byte, 16)...)
	if from4 := from.IP.To4(); from4 != nil {
		message := []byte{3, 4, 0, 0, 0, 0, mtu >> 8, mtu & 0xff}
		header := make([]byte, 20)
		header[0], header[8], header[9] = 4<<4|5, 64, unix.IPPROTO_TCP
		binary.BigEndian.PutUint16(header[2:], 1500)
		copy(header[12:], from4)
		copy(header[16:], to.IP.To4())
		binary.BigEndian.PutUint16(header[10:], checksum(header))
		message = append(append(message, header...), rest...)
		binary.BigEndian.PutUint16(message[2:], checksum(message))
		w.raw("icmp", vip4, message)
		return
	}
	message := []byte{2, 0, 0, 0, 0, 0, mtu >> 8, mtu & 0xff} // the kernel adds the checksum
	header := make([]byte, 40)
	header[0], header[6], header[7] = 6<<4, unix.IPPROTO_TCP, 64
	binary.BigEndian.PutUint16(header[4:], 1460)
	copy(header[8:], from.IP.To16())
	copy(header[24:], to.IP.To16())
	w.raw("ipv6-icmp", vip6, append(append(message, header...), rest...))
}

// raw sends what IP carries, from the client.
func (w *world) raw(protocol, to string, payload []byte) {
	w.t.Helper()
	network := "ip4:" + protocol
	if addr(to).Is6() {
		network = "ip6:" + protocol
	}
	w.client.Do(func() {
		c, err := net.ListenPacket(network, "")
		must(w.t, err)
		defer c.Close()
		if _, err := c.WriteTo(payload, &net.IPAddr{IP: addr(to).AsSlice()}); err != nil {
			w.t.Fatal(err)
		}
	})
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

var must = nstest.Must

// serving is a test in a world whose pod serves.
func serving(t *testing.T, test func(t *testing.T, w *world)) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.serve()
		test(t, w)
	})
}
