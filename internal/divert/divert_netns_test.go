package divert

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// Of each family: a client outside, the node towards it, the address of the Service.
var (
	clients = []string{"198.51.100.2", "2001:db8:c::2"}
	nodes   = []string{"198.51.100.1", "2001:db8:c::1"}
	vips    = []string{"192.0.2.10", "2001:db8:f::10"}
)

const (
	nodePort = 31080
	patient  = 5 * time.Second
	// healTime is what any sink has to repair damage.
	healTime = 2 * time.Second
)

// The pods: a proxy here, a proxy on another node, which is reached by a link of its own, kube-proxy's endpoint, and a
// client.
var pods = map[string][]string{
	"here": {"10.244.0.2", "fd00::2"}, "far": {"10.244.1.2", "fd00:1::2"}, "endpoint": {"10.244.2.2", "fd00:2::2"},
	"pod": {"10.244.3.2", "fd00:3::2"},
}

// world is a node with its pods, kube-proxy's rules, and a client before it.
type world struct {
	t     *testing.T
	node  *nstest.NS
	from  map[string]*nstest.NS
	table *Table
}

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, node: nstest.Self(t), from: map[string]*nstest.NS{},
		table: New(slog.New(slog.NewTextHandler(t.Output(), nil)), func() {}),
	}
	w.from["node"] = w.node
	w.node.Sysctl("ipv4/ip_forward", "1")
	w.node.Sysctl("ipv6/conf/all/forwarding", "1")
	attach := func(name, link string, gateways, own []string) {
		w.from[name] = w.node.Attach(link, []string{gateways[0] + "/24", gateways[1] + "/64"}, own[0]+"/24", own[1]+"/64")
	}
	attach("client", "eth0", nodes, clients)
	w.node.AddDefault(clients...)
	for name, own := range pods {
		attach(name, name, gateways(name), own)
		w.serve(w.from[name], name)
	}
	w.serve(w.node, "node") // which only a hole in the refusal would show
	return w
}

// gateways are the node's addresses towards a pod.
func gateways(pod string) (out []string) {
	for _, own := range pods[pod] {
		out = append(out, netip.MustParseAddr(own).Prev().String())
	}
	return out
}

// serve answers each connection to the node port with a name and the address of its client.
func (w *world) serve(ns *nstest.NS, name string) {
	ns.Serve(fmt.Sprint(":", nodePort), func(c net.Conn) {
		fmt.Fprint(c, name, " ", netip.MustParseAddrPort(c.RemoteAddr().String()).Addr().Unmap())
	})
}

// fetch returns what answers a new connection, or the error.
func (w *world) fetch(from, to string, port int) string {
	var c net.Conn
	var err error
	w.from[from].Do(func() { c, err = net.DialTimeout("tcp", net.JoinHostPort(to, fmt.Sprint(port)), patient) })
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "refused"
	}
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patient))
	buffer := make([]byte, 128)
	n, err := c.Read(buffer)
	if err != nil {
		return err.Error()
	}
	return string(buffer[:n])
}

func (w *world) tables() string { return w.node.Output("nft", "list", "tables") }

// nftablesProxy is what kube-proxy does in nftables mode, and iptablesProxy in iptables mode: the address, and the node
// port at all addresses of the node, lead to the endpoint.
func nftablesProxy(w *world) {
	const table = `table %[1]s kube-proxy {
	chain services {
		%[1]s daddr %[2]s tcp dport 80 dnat to %[3]s:31080
		fib daddr type local tcp dport 31080 dnat to %[3]s:31080
	}
	chain nat-prerouting { type nat hook prerouting priority -100; jump services
	}
	chain nat-output { type nat hook output priority -100; jump services
	}
}
`
	w.node.Output("nft", fmt.Sprintf(table, "ip", vips[0],
		pods["endpoint"][0])+fmt.Sprintf(table, "ip6", vips[1], "["+pods["endpoint"][1]+"]"))
}

func iptablesProxy(w *world) {
	const rules = `*nat
:KUBE-SERVICES - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A KUBE-SERVICES -d %[1]s -p tcp --dport 80 -j DNAT --to-destination %[2]s:31080
-A KUBE-SERVICES -p tcp --dport 31080 -m addrtype --dst-type LOCAL -j DNAT --to-destination %[2]s:31080
COMMIT
`
	w.node.Sysctl("ipv4/conf/all/route_localnet", "1")
	for command, args := range map[string][]any{
		"iptables-restore": {vips[0], pods["endpoint"][0]}, "ip6tables-restore": {vips[1], "[" + pods["endpoint"][1] + "]"},
	} {
		if _, err := exec.LookPath(command); err != nil {
			w.t.Skip("no iptables here to make the tables of others")
		}
		cmd := w.node.Command(command)
		cmd.Stdin = strings.NewReader(fmt.Sprintf(rules, args...))
		if out, err := cmd.CombinedOutput(); err != nil {
			w.t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
}

// desired leads port 80 of both addresses to a proxy.
func desired(proxy string) (d Desired) {
	for i, vip := range vips {
		to := netip.AddrPortFrom(netip.MustParseAddr(pods[proxy][i]), nodePort)
		d.Diversions = append(d.Diversions, lb.Diversion{
			Address: netip.MustParseAddr(vip), Port: 80, To: to, Remote: proxy == "far",
		})
	}
	d.NodePorts = []uint16{nodePort}
	return d
}

func TestWithNFTables(t *testing.T) {
	nstest.Run(t, func(t *testing.T) { testDivert(t, nftablesProxy) })
}

func TestWithIPTables(t *testing.T) {
	nstest.Run(t, func(t *testing.T) { testDivert(t, iptablesProxy) })
}

// testDivert: from outside, from a pod and from the node a proxied Service leads to the proxy, which sees the client,
// and its node port nowhere; as kube-proxy has it before and after.
func testDivert(t *testing.T, kubeProxy func(*world)) {
	w := newWorld(t)
	kubeProxy(w)
	check := func(when, from, to string, port int, want string) {
		t.Helper()
		if got := w.fetch(from, to, port); got != want {
			t.Errorf("%s: %s to %s port %d: %q, want %q", when, from, to, port, got, want)
		}
	}
	kubeProxys := func(when string) {
		t.Helper()
		for i := range vips {
			for from, own := range map[string]string{"client": clients[i], "pod": pods["pod"][i]} {
				check(when, from, vips[i], 80, "endpoint "+own)
				check(when, from, nodes[i], nodePort, "endpoint "+own)
			}
			check(when, "node", vips[i], 80, "endpoint "+nodes[i])
		}
		if strings.Contains(w.tables(), tableName) {
			t.Errorf("%s: there is a table", when)
		}
	}
	w.table.Set(Desired{})
	kubeProxys("before")
	for _, proxy := range []string{"here", "far"} {
		w.table.Set(desired(proxy))
		if !strings.Contains(w.tables(), tableName) {
			t.Errorf("%s: nft lists no table", proxy)
		}
		for i := range vips {
			node := nodes[i]
			if proxy == "far" {
				node = gateways("far")[i] // which the other node can answer
			}
			for from, own := range map[string]string{"client": clients[i], "pod": pods["pod"][i], "node": node} {
				check(proxy, from, vips[i], 80, proxy+" "+own)
			}
			for _, from := range []string{"client", "pod", "node"} {
				check(proxy, from, nodes[i], nodePort, "refused")
				check(proxy, from, gateways("pod")[i], nodePort, "refused")
			}
			check(proxy, "node", []string{"127.0.0.1", "::1"}[i], nodePort, "refused")
			check(proxy, "node", pods["here"][i], nodePort, "here "+gateways("here")[i]) // no address of the node
			check(proxy, "client", pods["here"][i], nodePort, "here "+clients[i])
		}
	}
	w.table.Set(Desired{})
	kubeProxys("after")
}

// TestOpen: connections that are open when the Service becomes proxied, or is no longer, go on.
func TestOpen(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		nftablesProxy(w)
		w.from["endpoint"].Serve(":8080", func(c net.Conn) { _, _ = io.Copy(c, c) })
		w.node.Output("nft", "insert", "rule", "ip", "kube-proxy", "services", "fib", "daddr", "type", "local", "tcp",
			"dport", "31081", "dnat", "to",
			pods["endpoint"][0]+":8080")
		var open net.Conn
		var err error
		w.from["client"].Do(func() { open, err = net.DialTimeout("tcp", nodes[0]+":31081", patient) })
		must(t, err)
		defer open.Close()
		for _, d := range []Desired{{}, {NodePorts: []uint16{31081}}, {}} {
			w.table.Set(d)
			_ = open.SetDeadline(time.Now().Add(patient))
			buffer := make([]byte, 8)
			if _, err := open.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := open.Read(buffer); err != nil {
				t.Errorf("with %v: %v", d, err)
			}
		}
	})
}

// TestRest: what belongs to no connection that was led to a proxy goes nowhere. Sent back to its link, it would have
// the client redirected.
func TestRest(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.node.Output("nft", fmt.Sprintf(`table inet seen {
	chain came { type filter hook prerouting priority -300; ip daddr %[1]s counter; ip6 daddr %[2]s counter; }
	chain left { type filter hook forward priority -300; ip daddr %[1]s counter; ip6 daddr %[2]s counter; }
}`, vips[0], vips[1]))
		counts := func(chain string) [2]string {
			found := regexp.MustCompile(`packets (\d+)`).FindAllStringSubmatch(w.node.Output("nft", "list", "chain", "inet",
				"seen", chain), -1)
			return [2]string{found[0][1], found[1][1]}
		}
		fin := make([]byte, 20) // from port 40000 to port 80, FIN and ACK
		copy(fin, []byte{40000 >> 8, 40000 & 0xff, 0, 80})
		fin[12], fin[13] = 5<<4, 0x11
		send := func() {
			for i, network := range []string{"ip4:tcp", "ip6:tcp"} {
				w.from["client"].Do(func() {
					c, err := net.ListenPacket(network, "")
					must(t, err)
					defer c.Close()
					_, err = c.WriteTo(fin, &net.IPAddr{IP: net.ParseIP(vips[i])})
					must(t, err)
				})
			}
		}
		for i, want := range []string{"1", "1"} { // the node forwards the first, and no more once proxies serve
			if i == 1 {
				w.table.Set(desired("here"))
			}
			send()
			nstest.Until(t, patient, "packets that came", func() bool {
				return counts("came") == [2]string{fmt.Sprint(i + 1), fmt.Sprint(i + 1)}
			})
			if got := counts("left"); got != [2]string{want, want} {
				t.Errorf("round %d: %v left, want %s of each", i, got, want)
			}
		}
	})
}

// TestOwn: what a proxy of this node says of all tenants' Services is for this node, and neither for pods nor for
// clients; its other ports are not closed by that.
func TestOwn(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.from["here"].Serve(fmt.Sprint(":", frontendsPort), func(c net.Conn) { fmt.Fprint(c, "all Services") })
		var own []netip.Addr
		for _, a := range pods["here"] {
			own = append(own, netip.MustParseAddr(a))
		}
		for _, closed := range []bool{false, true} {
			if closed {
				w.table.Set(Desired{Proxies: own})
			}
			for from, want := range map[string]string{"node": "all Services", "client": "refused", "endpoint": "refused"} {
				if !closed {
					want = "all Services"
				}
				for _, a := range pods["here"] {
					if got := w.fetch(from, a, frontendsPort); got != want {
						t.Errorf("closed %t: %s gets %q from %s, want %q", closed, from, got, a, want)
					}
				}
			}
		}
		if got := w.fetch("endpoint", pods["here"][0], nodePort); !strings.HasPrefix(got, "here") {
			t.Errorf("another port: %q", got)
		}
		w.table.Set(Desired{})
		if tables := w.tables(); strings.Contains(tables, tableName) {
			t.Errorf("%s stays", tables)
		}
	})
}

// TestDamage: what others do to the table is undone, a dead speaker's table stays and is adopted, and Remove deletes
// it.
func TestDamage(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.table.Set(desired("here"))
		stop := nstest.Running(t, w.table.Run)
		for _, damage := range []string{"flush ruleset", "delete table inet holdfast-proxy",
			"flush map inet holdfast-proxy proxies6",
			"flush chain inet holdfast-proxy refuse"} {
			before := w.table.Repairs()
			w.node.Output("nft", damage)
			nstest.Until(t, healTime, damage+" is repaired", func() bool { return w.table.Repairs() > before })
			for i, vip := range vips {
				if got, want := w.fetch("client", vip, 80), "here "+clients[i]; got != want {
					t.Errorf("%s: %q, want %q", damage, got, want)
				}
			}
			if got := w.fetch("client", nodes[0], nodePort); got != "refused" {
				t.Errorf("%s: the node port: %q", damage, got)
			}
		}
		stop()
		if got, want := w.fetch("client", vips[1], 80), "here "+clients[1]; got != want {
			t.Errorf("without a speaker: %q, want %q", got, want)
		}
		before, err := layout().Handle()
		must(t, err)
		next := New(slog.New(slog.DiscardHandler), func() {})
		next.Set(desired("here"))
		if after, err := layout().Handle(); err != nil || after != before || next.Failure() != nil {
			t.Errorf("the table is another: %d, %d, %v", before, after, err)
		}
		state, err := layout().Outline()
		if err != nil || len(state.Chains) != len(layout().Chains) {
			t.Errorf("chains %v, %v", state, err)
		}
		if err := next.Remove(); err != nil || strings.Contains(w.tables(), tableName) {
			t.Errorf("removed: %v, %s", err, w.tables())
		}
	})
}

var must = nstest.Must
