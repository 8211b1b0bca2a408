package egress

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// outward connects from a pod to the partner and returns the source that the partner sees.
func outward(t *testing.T, p *pod, network, to string) (net.Conn, string) {
	t.Helper()
	c := p.dial(t, network, to, echoPort)
	source, err := ask(c, patient)
	must(t, err)
	return c, source.Addr().String()
}

// refused reports whether a new connection is refused at once.
func refused(p *pod, to string) bool {
	_, err := p.try("tcp", to, echoPort, patient)
	return err != nil && strings.Contains(err.Error(), "refused")
}

// TestReuse: the right of a pod ends with its link. The next pod with its address has no right, and none of the entries
// of the former one, until the plan says that it is a source.
func TestReuse(t *testing.T) {
	for name, bridged := range map[string]bool{"routed": false, "bridged": true} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				w := newWorld(t)
				n := w.nodes[0]
				add := w.addPod
				if bridged {
					w.addBridge(n)
					add = w.addBridged
				}
				former := add(n, 2)
				nstest.Running(t, n.translator.Run)
				w.set()
				const from = 5353
				ports := map[string]netip.AddrPort{}
				for _, to := range partners.all() {
					c, err := former.tryFrom("udp", from, to, echoPort, patient)
					must(t, err)
					defer c.Close()
					w.translated(n, c)
					ports[to], err = ask(c, patient)
					must(t, err)
				}

				w.removePod(n, former)
				next := add(n, 2)
				var refusedOnes []net.Conn
				for _, to := range partners.all() {
					// The entries of the former pod are there.
					c, err := next.tryFrom("udp", from, to, echoPort, patient)
					must(t, err)
					defer c.Close()
					refusedOnes = append(refusedOnes, c)
					if source, err := ask(c, silent); err == nil {
						t.Errorf("the next pod sends from %v", source)
					}
					if !refused(next, to) {
						t.Errorf("%s: the next pod may open connections", to)
					}
				}
				nstest.Until(t, patient, "the veth is known and not trusted", func() bool {
					return strings.Contains(n.translator.Faults()[addr(next.v6)], "was not the pod's")
				})
				for _, to := range partners.all() {
					if !refused(next, to) {
						t.Errorf("%s: the next pod may open connections", to)
					}
				}

				// The plan learns that the pod is another one, and of the Service too.
				next.uid = "next"
				w.set()
				for _, to := range partners.all() {
					for _, network := range []string{"tcp", "udp"} {
						c, err := next.tryFrom(network, from+1, to, echoPort, patient)
						must(t, err)
						defer c.Close()
						w.translated(n, c)
					}
				}
				for _, c := range refusedOnes {
					nstest.Until(t, patient, "the next pod may send", func() bool { _, err := ask(c, silent); return err == nil })
					w.translated(n, c)
					source, err := ask(c, patient)
					must(t, err)
					if source == ports[host(c)] {
						t.Errorf("the entry of the former pod serves the next one: %v", source)
					}
				}
				if faults := n.translator.Faults(); len(faults) > 0 {
					t.Error(faults)
				}
			})
		})
	}
}

// TestEarly: connections that a new pod opens before its right is known leave with the node's address, and are cut
// then.
func TestEarly(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.nodes[0]
		w.addPod(n, 2)
		nstest.Running(t, n.translator.Run)
		w.set()
		early := w.addPod(n, 3)
		var open []net.Conn
		for _, to := range partners.all() {
			for range 20 {
				c, source := outward(t, early, "tcp", to)
				if source != n.address().of(to) {
					t.Fatalf("the partner sees %s", source)
				}
				open = append(open, c)
			}
		}
		w.set()
		for _, c := range open {
			nstest.Until(t, patient, "an early connection is cut", func() bool {
				_, err := ask(c, silent)
				return err != nil && strings.Contains(err.Error(), "reset")
			})
		}
		each(t, func(t *testing.T, network, to string) { w.translated(n, early.dial(t, network, to, echoPort)) })

		// The connections of a pod that is no source any more end too.
		var last []net.Conn
		for _, to := range partners.all() {
			last = append(last, early.dial(t, "tcp", to, echoPort))
		}
		n.pods = n.pods[:1]
		w.set()
		for _, c := range last {
			if _, err := ask(c, patient); err == nil {
				t.Error("a pod without a right still sends from the address")
			}
		}
	})
}

// TestBridge: behind a bridge only the pod's own port has its right, whether the bridge calls IP's rules or not.
func TestBridge(t *testing.T) {
	for _, calls := range []string{"0", "1"} {
		t.Run("bridge-nf-call "+calls, func(t *testing.T) { bridge(t, calls) })
	}
}

func bridge(t *testing.T, calls string) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		for _, name := range []string{"iptables", "ip6tables"} {
			if _, err := os.Stat("/proc/sys/net/bridge"); err == nil {
				w.nodes[0].Sysctl("bridge/bridge-nf-call-"+name, calls)
			}
		}
		n := w.nodes[0]
		w.addBridge(n)
		p := w.addBridged(n, 2)
		neighbour := w.addBridged(n, 3)
		n.pods = n.pods[:1]
		nstest.Running(t, n.translator.Run)
		w.set()
		each(t, func(t *testing.T, network, to string) { w.translated(n, p.dial(t, network, to, echoPort)) })
		t.Log(n.list("bridge"))
		for _, to := range partners.all() {
			p.Output("ping", "-c", "1", "-W", "2", to)
			if _, source := outward(t, neighbour, "tcp", to); source != n.address().of(to) {
				t.Errorf("the neighbour sends from %s", source)
			}
		}

		// The neighbour forges the address of the pod. Answers would reach the pod, so packets are counted.
		before := n.rejected()
		for _, to := range partners.all() {
			bits := map[bool]string{true: "/24", false: "/64"}[strings.Contains(to, ".")]
			neighbour.AddAddress("eth0", p.of(to)+bits)
			neighbour.Do(func() {
				d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(p.of(to))}}
				c, err := d.Dial("udp", net.JoinHostPort(to, fmt.Sprint(echoPort)))
				must(t, err)
				defer c.Close()
				_, err = ask(c, silent)
				if err == nil {
					t.Error("an answer")
				}
			})
		}
		if after := n.rejected(); after < before+2 {
			t.Errorf("%d packets rejected, then %d", before, after)
		}
	})
}

// TestClaims: an address that two veths claim has no right.
func TestClaims(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.nodes[0]
		w.addBridge(n)
		p := w.addBridged(n, 2)
		liar := w.addBridged(n, 3)
		n.pods = n.pods[:1]
		liar.AddAddress("eth0", p.v4+"/24")
		n.Output("ip", "neigh", "replace", p.v4, "lladdr", p.MAC("eth0").String(), "dev", "cni0", "nud", "permanent")
		nstest.Running(t, n.translator.Run)
		w.set()
		if fault := n.translator.Faults()[addr(p.v4)]; !strings.Contains(fault, "pod2 and pod3") {
			t.Errorf("fault %q", fault)
		}
		if !refused(p, partner4) || refused(p, partner6) {
			t.Error("IPv4 is open, or IPv6 is refused")
		}
		n.Delete(liar.link)
		nstest.Until(t, patient, "the pod has its right", func() bool { return len(n.translator.Faults()) == 0 })
		w.translated(n, p.dial(t, "tcp", partner4, echoPort))
	})
}

// TestNewPod: a pod has its right soon after its link appears, even if the plan knew it before.
func TestNewPod(t *testing.T) {
	for name, bridged := range map[string]bool{"routed": false, "bridged": true} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				w := newWorld(t)
				n := w.nodes[0]
				add := w.addPod
				if bridged {
					w.addBridge(n)
					add = w.addBridged
				}
				n.pods = []*pod{{pair: pair{"10.244.1.5", "fd00:1::5"}}}
				nstest.Running(t, n.translator.Run)
				w.set()
				if faults := n.translator.Faults(); len(faults) != 2 {
					t.Fatalf("faults: %v", faults)
				}
				time.Sleep(2 * time.Second) // the next attempt without an event is far
				p := add(n, 5)
				start := time.Now()
				nstest.Until(t, patient, "the pod has its right", func() bool { return len(n.translator.Faults()) == 0 })
				t.Logf("%s: the right came %v after the address", name, time.Since(start))
				for _, to := range partners.all() {
					w.translated(n, p.dial(t, "tcp", to, echoPort))
				}
			})
		})
	}
}

// TestUplinks: new connections by another uplink are refused, and packets to tunnels are not touched.
func TestUplinks(t *testing.T) {
	with(t, func(t *testing.T, w *world, n *node, p *pod) {
		for i, link := range []string{"eth1", "cni-tunnel"} { // the second one has no clients
			far := nstest.New(t)
			nstest.Veth(t, n.NS, link, far, "eth0")
			n.AddAddress(link, fmt.Sprintf("198.18.%d.1/24", i), fmt.Sprintf("2001:db8:a%d::1/64", i))
			far.AddAddress("eth0", fmt.Sprintf("198.18.%d.2/24", i), fmt.Sprintf("2001:db8:a%d::2/64", i))
			far.Serve(fmt.Sprintf(":%d", echoPort), whoami)
		}
		w.set()
		for _, to := range []string{"198.18.0.2", "2001:db8:a0::2"} {
			if !refused(p, to) {
				t.Errorf("%s: not refused", to)
			}
		}
		for to, want := range map[string]string{"198.18.1.2": "198.18.1.1", "2001:db8:a1::2": "2001:db8:a1::1"} {
			if _, source := outward(t, p, "tcp", to); source != want {
				t.Errorf("%s sees %s", to, source)
			}
		}
	})
}

// TestInside: destinations within the cluster see no egress address: nodes, prefixes behind nodes, and what kube-proxy
// translates, such as the address of the Service itself.
func TestInside(t *testing.T) {
	with(t, func(t *testing.T, w *world, n *node, p *pod) {
		other := w.nodes[2]
		q := w.addPod(other, 9)
		other.pods = nil
		for _, ns := range []*nstest.NS{other.NS, q.NS} {
			ns.Serve(fmt.Sprintf(":%d", echoPort), whoami)
		}
		// A network that the node routes to another node, as network plugins without tunnels do, not in Inside.
		other.AddAddress("lo", "10.99.0.1/32", "fd99::1/128")
		n.Output("ip", "route", "add", "10.99.0.0/16", "via", other.address().v4)
		n.Output("ip", "route", "add", "fd99::/64", "via", other.linkLocal(), "dev", "eth0")
		w.set()
		inside := []string{"10.99.0.1", "fd99::1", other.address().v4, other.address().v6}
		nstest.Until(t, patient, "the routes are known", func() bool {
			return strings.Contains(n.list("ip"), "10.99.0.0/16") && strings.Contains(n.list("ip6"), "fd99::/64")
		})
		for _, to := range inside {
			if _, source := outward(t, p, "tcp", to); source != n.address().of(to) {
				t.Errorf("%s sees %s", to, source)
			}
		}
		// What kube-proxy translates is inside, wherever it leads.
		for family, cluster := range map[string]pair{"ip": {"10.96.0.9", partner4}, "ip6": {"fd01::9", partner6}} {
			n.Output("nft", fmt.Sprintf("add rule %[1]s others services %[1]s daddr %[2]s tcp dport %[3]d dnat to %[4]s",
				family, cluster.v4, echoPort, cluster.v6))
			if _, source := outward(t, p, "tcp", cluster.v4); source != n.address().of(cluster.v4) {
				t.Errorf("%s sees %s", cluster.v6, source)
			}
		}
		// The pod's connection to its own Service stays in the node.
		for family, vip := range map[string]string{"ip": vip4, "ip6": vip6} {
			n.Output("nft",
				fmt.Sprintf("add rule %[1]s others services %[1]s daddr %[2]s tcp dport %[3]d meta mark set meta "+
					"mark or 0x4000 dnat to %[4]s",
					family, vip, echoPort, p.of(vip)))
			n.Output("nft", fmt.Sprintf("insert rule %s others outgoing meta mark and 0x4000 == 0x4000 masquerade", family))
		}
		p.Serve(fmt.Sprintf(":%d", echoPort), whoami)
		for _, vip := range vips.all() {
			c, err := p.try("tcp", vip, echoPort, patient)
			must(t, err)
			defer c.Close()
			source, err := ask(c, patient)
			must(t, err)
			if source.Addr() == addr(vip) {
				t.Errorf("the pod sees itself as %s", vip)
			}
		}
	})
}

// TestFull: a full slice is reported, and harms no other destination.
func TestFull(t *testing.T) {
	with(t, func(t *testing.T, w *world, n *node, p *pod) {
		if got := n.translator.countSlices(); len(got) > 0 {
			t.Fatalf("exhausted: %v", got)
		}
		for _, to := range partners.all() {
			p.Do(func() {
				for from := range lb.SlicePorts + 100 {
					d := net.Dialer{LocalAddr: &net.UDPAddr{Port: 20000 + from}}
					c, err := d.Dial("udp", net.JoinHostPort(to, fmt.Sprint(echoPort)))
					must(t, err)
					_, _ = c.Write([]byte("hello\n"))
					c.Close()
				}
			})
		}
		start := time.Now()
		got := n.translator.countSlices()
		t.Logf("exhausted: %v, found in %v", got, time.Since(start))
		if len(got) != 2 {
			t.Errorf("exhausted: %v", got)
		}
		for _, to := range partners.all() {
			w.translated(n, p.dial(t, "tcp", to, echoPort))
			p.Output("ping", "-c", "1", "-W", "2", to)
		}

		changed := lb.NewSignal()
		next := New(Config{Log: testLog(t), Links: func() []lb.Interface { return w.links(n) }, Changed: changed.Kick})
		next.Set(w.desired(n))
		nstest.Running(t, next.Run)
		nstest.Until(t, patient, "the next process reports it", func() bool { return slices.Equal(next.Exhausted(), got) })
		<-changed
	})
}

// TestDeclaredPort: the partner's own flows to a port of the Service arrive, even if a pod has a flow to the partner's
// port of the same number.
func TestDeclaredPort(t *testing.T) {
	with(t, func(t *testing.T, w *world, n *node, p *pod) {
		const declared = 53
		for family, vip := range map[string]string{"ip": vip4, "ip6": vip6} {
			n.Output("nft",
				fmt.Sprintf("add rule %[1]s others services %[1]s daddr %[2]s udp dport %[3]d dnat to %[4]s", family,
					vip, declared, p.of(vip)))
		}
		w.owner(n)
		var server, client net.PacketConn
		var err error
		p.Do(func() { server, err = net.ListenPacket("udp", fmt.Sprint(":", declared)) })
		must(t, err)
		defer server.Close()
		w.partner.Do(func() { client, err = net.ListenPacket("udp", fmt.Sprint(":", declared)) })
		must(t, err)
		defer client.Close()
		for _, to := range partners.all() {
			// The pod sends from the declared port to the same port.
			_, err := server.WriteTo([]byte("question"), &net.UDPAddr{IP: net.ParseIP(to), Port: declared})
			must(t, err)
			_ = client.SetDeadline(time.Now().Add(patient))
			buffer := make([]byte, 100)
			_, from, err := client.ReadFrom(buffer)
			must(t, err)
			source := from.(*net.UDPAddr).AddrPort()
			slice := lb.PortSlice{First: n.first()}
			if source.Addr().Unmap() != addr(vips.of(to)) || !slice.Has(source.Port()) {
				t.Errorf("the partner sees %v", source)
			}
			for text, target := range map[string]net.Addr{
				"answer":  from,
				"request": &net.UDPAddr{IP: net.ParseIP(vips.of(to)), Port: declared},
			} {
				_, err = client.WriteTo([]byte(text), target)
				must(t, err)
				_ = server.SetDeadline(time.Now().Add(patient))
				size, _, err := server.ReadFrom(buffer)
				if err != nil || string(buffer[:size]) != text {
					t.Errorf("%s: the pod receives %q, %v; want %s", to, buffer[:size], err, text)
				}
			}
		}
	})
}
