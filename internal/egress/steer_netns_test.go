package egress

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestWaysLocal: what a pod sends to an address of the node itself has no mark: in its mode IPVS kube-proxy gives the
// node the addresses of Services, and translates later.
func TestWaysLocal(t *testing.T) {
	withCore(t, func(t *testing.T, _ *world, n *node, p *pod) {
		n.Output("nft", `add table inet spy; add chain inet spy seen { type filter hook input priority 0; };
			add rule inet spy seen meta mark and 0x0c != 0 counter`)
		n.Serve(fmt.Sprintf(":%d", echoPort), whoami)
		for _, local := range []string{"198.51.100.7", "2001:db8:9::7"} {
			n.AddAddress("lo", local+pair{"/32", "/128"}.of(local))
			if _, source := outward(t, p, "tcp", local); source != p.of(local) {
				t.Errorf("%s sees %s", local, source)
			}
		}
		if seen := n.Output("nft", "list", "table", "inet", "spy"); !strings.Contains(seen, "packets 0 ") {
			t.Errorf("marks are left:\n%s", seen)
		}
	})
}

// TestWaysHalves: routes by another link that together are a default route do not lead pods there.
func TestWaysHalves(t *testing.T) {
	withCore(t, func(t *testing.T, w *world, n *node, p *pod) {
		n.Output("ip", "route", "add", "0.0.0.0/1", "via", core4)
		n.Output("ip", "route", "add", "128.0.0.0/1", "via", core4)
		n.Output("ip", "route", "add", "2000::/3", "via", core6)
		n.translator.resync()
		if faults := n.translator.Faults(); len(faults) > 0 {
			t.Error(faults)
		}
		each(t, func(t *testing.T, network, to string) { w.translated(n, p.dial(t, network, to, echoPort)) })
	})
}

// TestWaysHostPort: a pod reaches itself by its own hostPort. The portmap plugin marks such packets, to masquerade them
// later. Marks of other programs stay, even if they have bits of our own.
func TestWaysHostPort(t *testing.T) {
	withCore(t, func(t *testing.T, _ *world, n *node, p *pod) {
		p.Serve(fmt.Sprintf(":%d", echoPort), whoami)
		for family, c := range map[string]struct{ node, pod, brackets string }{
			"ip":  {n.core().v4, p.v4, p.v4},
			"ip6": {n.core().v6, p.v6, "[" + p.v6 + "]"},
		} {
			for port, mark := range map[int]uint32{8080: 0x2000, 8081: wayMark(1), 8082: wayMark(3)} {
				n.Output("nft", fmt.Sprintf(`
					add rule %[1]s others services %[1]s saddr %[3]s tcp dport %[5]d meta mark set mark or %[6]d
					add rule %[1]s others services %[1]s daddr %[2]s tcp dport %[5]d dnat to %[4]s:%[7]d
					add rule %[1]s others outgoing meta mark and %[6]d == %[6]d %[1]s daddr %[3]s masquerade`,
					family, c.node, c.pod, c.brackets, port, mark, echoPort))
				c, err := p.try("tcp", c.node, port, silent)
				if err != nil {
					t.Errorf("mark %#x: %v", mark, err)
					continue
				}
				c.Close()
			}
		}
	})
}

// TestWaysAnswers: answers to connections that others opened to the pod, by a Service or directly, take the main
// routing table.
func TestWaysAnswers(t *testing.T) {
	withCore(t, func(t *testing.T, w *world, n *node, p *pod) {
		n.Output("nft", `add table inet spy; add chain inet spy out { type filter hook postrouting priority 0; };
			add rule inet spy out iifname "pod2" oifname eth0 counter`)
		p.Serve(fmt.Sprintf(":%d", echoPort), whoami)
		w.core.Output("ip", "route", "add", p.v4, "via", n.core().v4)
		w.core.Output("ip", "route", "add", p.v6, "via", n.core().v6)
		w.partner.Output("ip", "route", "add", p.v4, "via", "203.0.114.1")
		w.partner.Output("ip", "route", "add", p.v6, "via", "2001:db8:e::1")
		for family, served := range map[string]pair{"ip": {n.core().v4, p.v4}, "ip6": {n.core().v6, p.v6}} {
			n.Output("nft", fmt.Sprintf("add rule %[1]s others services %[1]s daddr %[2]s tcp dport %[3]d dnat to %[4]s",
				family, served.v4, echoPort, served.v6))
			for _, to := range served.all() {
				w.partner.Do(func() {
					client := net.ParseIP(pair{"203.0.114.2", "2001:db8:e::2"}.of(to))
					d := net.Dialer{Timeout: patient, LocalAddr: &net.TCPAddr{IP: client}}
					c, err := d.Dial("tcp", net.JoinHostPort(to, fmt.Sprint(echoPort)))
					must(t, err)
					defer c.Close()
					_, err = ask(c, patient)
					must(t, err)
				})
			}
		}
		if seen := n.Output("nft", "list", "table", "inet", "spy"); !strings.Contains(seen, "packets 0 ") {
			t.Errorf("answers leave by the clients' network:\n%s", seen)
		}
	})
}

// TestWaysBefore: a connection that the pod began before its right keeps its source, so it takes no way. Then it ends,
// wherever the node's own packets lead.
func TestWaysBefore(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.addCore()
		n := w.nodes[0]
		p := w.addPod(n, 2)
		n.Output("nft", `add table inet spy; add chain inet spy out { type filter hook postrouting priority 300; };
			add rule inet spy out iifname "pod2" oifname eth0 counter`)
		var open []net.Conn
		for _, to := range partners.all() {
			c, source := outward(t, p, "tcp", to)
			if source != n.core().of(to) {
				t.Fatalf("%s sees %s before the right", to, source)
			}
			open = append(open, c)
		}

		w.set() // sweeps wait for Run
		for _, c := range open {
			got, err := ask(c, silent)
			if err != nil || got.Addr().String() != n.core().of(host(c)) {
				t.Errorf("%s sees %v: %v", c.RemoteAddr(), got, err)
			}
		}
		if seen := n.Output("nft", "list", "table", "inet", "spy"); !strings.Contains(seen, "packets 0 ") {
			t.Errorf("packets left by the link of the address:\n%s", seen)
		}

		nstest.Veth(t, n.NS, "pod9", newHost(t), "eth0")
		for _, family := range []string{"-4", "-6"} {
			n.Output("ip", family, "route", "add", "default", "dev", "pod9", "table", "99")
			n.Output("ip", family, "rule", "add", "iif", "lo", "pref", "900", "table", "99")
		}
		nstest.Running(t, n.translator.Run)
		for _, c := range open {
			nstest.Until(t, patient, "the connection to "+c.RemoteAddr().String()+" ends", func() bool {
				_, err := ask(c, silent)
				return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
			})
		}
	})
}
