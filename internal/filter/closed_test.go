package filter

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestUndeclared: a port that no Service declares is closed, whatever kube-proxy or the node itself would serve there.
// A packet to it does not loop between the node and its router.
func TestUndeclared(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.proxy()
		w.serve(w.pod, 80, 81)
		// ssh, as it were: it listens on every address, and the external ones are the node's own here.
		w.serve(w.node, 22)
		w.node.AddAddress("lo", vip4+"/32", vip6+"/128")
		d := desired(tcp(vip4), tcp(vip6))
		for _, vip := range []string{vip4, vip6} {
			w.set(d)
			w.finds(answer, w.client, "tcp", "", vip, 80)
			w.finds(silence, w.client, "tcp", "", vip, 22)
			w.finds(silence, w.client, "tcp", "", vip, 81)
			w.finds(silence, w.client, "udp", "", vip, 81)
			reset := d
			reset.Reset = pools()
			w.set(reset)
			w.finds(refused, w.client, "tcp", "", vip, 22)
			w.finds(refused, w.client, "udp", "", vip, 81)
			w.finds(answer, w.client, "tcp", "", vip, 80)
			// A frontend that kube-proxy does not serve leads to no service of the node.
			ssh := tcp(vip)
			ssh.Port = 22
			w.set(desired(ssh))
			w.finds(silence, w.client, "tcp", "", vip, 22)
		}
		w.client.Output("nft",
			fmt.Sprintf("add table inet seen { counter back { }; chain c { type filter hook prerouting priority 0; "+
				"ip daddr %s counter name back; "+
				"ip6 daddr %s counter name back; }; }", closedVIP4, closedVIP6))
		for _, vip := range []string{closedVIP4, closedVIP6} {
			// No endpoint serves it, but it is a frontend: the packet gets as far as the way out, which leads back to
			// the client.
			udp := tcp(vip)
			udp.Protocol = "UDP"
			w.set(desired(tcp(vip), udp))
			w.finds(silence, w.client, "tcp", "", vip, 80)
			w.finds(silence, w.client, "udp", "", vip, 80)
			if got := w.client.Output("nft", "list", "counters"); !strings.Contains(got, "packets 0 ") {
				t.Errorf("packets to %s went on to the router: %s", vip, got)
			}
		}
	})
}

// TestUndeclaredAllowed: undeclared ports are left alone where the pool has them open: kube-proxy and the node serve
// them, with and without a frontend beside them. Declared ports keep their ranges, and what kube-proxy does not serve
// of them does not reach the node. Other pools stay closed.
func TestUndeclaredAllowed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.proxy()
		w.serve(w.pod, 80, 81)
		w.serve(w.node, 22, 23)
		w.node.AddAddress("lo", vip4+"/32", vip6+"/128", closedVIP4+"/32", closedVIP6+"/128")
		for _, vip := range []string{vip4, vip6} {
			own := addr(vip)
			closed := tcp(vip)
			closed.Restricted = true
			unserved := tcp(vip)
			unserved.Port = 23
			d := desired(unserved, closed)
			d.Open = []lb.Range{{From: own, To: own}}
			w.set(d)
			w.finds(answer, w.client, "tcp", "", vip, 22)
			w.finds(answer, w.client, "tcp", "", vip, 81)
			w.finds(answer, w.client, "udp", "", vip, 81)
			w.finds(silence, w.client, "tcp", "", vip, 80)
			w.finds(silence, w.client, "tcp", "", vip, 23)
			w.set(draft{Desired: Desired{Filter: lb.Filter{Guarded: d.Guarded, Open: d.Open}}})
			w.finds(answer, w.client, "tcp", "", vip, 80)
			w.finds(answer, w.client, "tcp", "", vip, 23)
			for _, other := range []string{closedVIP4, closedVIP6} {
				w.finds(silence, w.client, "tcp", "", other, 22)
			}
		}
	})
}

// TestEstablished: an established connection ends when its source is no longer among those that may come, and so does
// one to a frontend that is gone.
func TestEstablished(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		for vip, client := range map[string]string{vip4: client4, vip6: client6} {
			d := tcp(vip)
			d.Restricted, d.Allow = true, []netip.Prefix{netip.PrefixFrom(addr(client), addr(client).BitLen())}
			w.set(desired(d))
			c, err := dial(w.client, "tcp", client, vip, 80, patient)
			must(t, err)
			defer c.Close()
			must(t, talk(c, patient))
			shut := d
			shut.Allow = nil
			w.set(desired(shut))
			if err := talk(c, silent); err == nil {
				t.Errorf("%s: an established connection goes on after its range was withdrawn", vip)
			}
			w.set(desired(d))
			if err := talk(c, patient); err != nil {
				t.Errorf("%s: it does not go on once the range is back: %v", vip, err)
			}
			// Draining: no new ones, but this one goes on.
			refusing := d
			refusing.Refuse = true
			w.set(desired(refusing))
			w.finds(refused, w.client, "tcp", client, vip, 80)
			if err := talk(c, patient); err != nil {
				t.Errorf("%s: an established connection ends with the last endpoint: %v", vip, err)
			}
			w.set(desired())
			if err := talk(c, silent); err == nil {
				t.Errorf("%s: an established connection goes on after its frontend is gone", vip)
			}
		}
	})
}

// TestPings: the node answers echo requests to the addresses it is told to, from those addresses, and no other.
func TestPings(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		if _, err := exec.LookPath("ping"); err != nil {
			t.Skip("no ping here")
		}
		d := desired(tcp(vip4), tcp(vip6))
		ping := func(ns *nstest.NS, to string, want bool) {
			t.Helper()
			wait := "1"
			if want {
				wait = "5"
			}
			out, err := ns.Command("ping", "-c", "1", "-w", wait, to).CombinedOutput()
			if got := err == nil && strings.Contains(string(out), "from "+to); got != want {
				t.Errorf("ping %s: answered %v, want %v\n%s", to, got, want, out)
			}
		}
		for _, own := range [][]netip.Addr{nil, {addr(node4), addr(node6)}} {
			d.Pings, d.Addresses = []netip.Addr{addr(vip4), addr(vip6)}, own
			w.set(d)
			ping(w.client, vip4, true)
			ping(w.client, vip6, true)
			ping(w.pod, vip4, true)
			ping(w.pod, vip6, true)
			ping(w.node, vip4, true)
			ping(w.node, vip6, true)
			ping(w.client, closedVIP4, false)
			ping(w.client, closedVIP6, false)
		}
		d.Pings = nil
		w.set(d)
		ping(w.client, vip4, false)
		ping(w.client, vip6, false)
		ping(w.client, node4, true)
	})
}

// TestPingRate: a source that asks for echoes without rest gets only some.
func TestPingRate(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		if _, err := exec.LookPath("ping"); err != nil {
			t.Skip("no ping here")
		}
		d := desired()
		d.Pings = []netip.Addr{addr(vip4), addr(vip6)}
		w.set(d)
		for _, vip := range []string{vip4, vip6} {
			// 300 in 0.3 s or a little more; 50 a second and 50 at once may pass.
			out, _ := w.client.Command("ping", "-c", "300", "-i", "0.001", "-w", "3", "-q", vip).CombinedOutput()
			if strings.Contains(string(out), " 0 received") || strings.Contains(string(out), " 300 received") {
				t.Errorf("ping %s: %s", vip, out)
			}
		}
	})
}

// TestFragmentsAndPathMTU: fragments are put together before they are judged, and errors about a connection come
// through: the client's side of path MTU discovery, and the server's.
func TestFragmentsAndPathMTU(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		for vip, client := range map[string]string{vip4: client4, vip6: client6} {
			d := tcp(vip)
			d.Protocol = "UDP"
			d.Restricted = true
			d.Allow = []netip.Prefix{netip.PrefixFrom(addr(client), addr(client).BitLen())}
			big := tcp(vip)
			big.Restricted, big.Allow = d.Restricted, d.Allow
			w.set(desired(big, d))
			c, err := dial(w.client, "udp", client, vip, 80, patient)
			must(t, err)
			defer c.Close()
			exchange(t, c, 8000, patient, true)
			strange, err := dial(w.client, "udp", map[string]string{vip4: stranger4, vip6: stranger6}[vip], vip, 80, patient)
			must(t, err)
			defer strange.Close()
			exchange(t, strange, 8000, silent, false)
		}
		// The way to the client becomes narrow behind the node: the pod learns it by ICMP errors to the
		// external address, which the client's side sends.
		narrow := w.client.Attach("far0", []string{"203.0.113.1/24", "2001:db8:d::1/64"}, "203.0.113.2/24",
			"2001:db8:d::2/64")
		w.client.Sysctl("ipv4/conf/all/forwarding", "1")
		w.client.Sysctl("ipv6/conf/all/forwarding", "1")
		// By route, not by link: a virtual link would not take large packets in, either.
		w.client.Output("ip", "route", "replace", "203.0.113.2", "dev", "far0", "mtu", "lock", "1300")
		w.client.Output("ip", "-6", "route", "replace", "2001:db8:d::2", "dev", "far0", "mtu", "lock", "1300")
		for vip, from := range map[string]string{vip4: "203.0.113.2", vip6: "2001:db8:d::2"} {
			w.set(desired(tcp(vip)))
			c, err := dial(narrow, "tcp", from, vip, 80, patient)
			must(t, err)
			defer c.Close()
			exchange(t, c, 60000, patient, true)
			if got := w.pod.Output("ss", "-tin", "state", "established"); !strings.Contains(got, "pmtu:1300") {
				t.Errorf("%s: the server has not learned the path's MTU:\n%s", vip, got)
			}
		}
	})
}

// exchange sends that many bytes and wants them back.
func exchange(t *testing.T, c net.Conn, size int, wait time.Duration, want bool) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(wait))
	_, err := c.Write(make([]byte, size))
	for n := 0; err == nil && n < size; {
		var m int
		m, err = c.Read(make([]byte, 64<<10))
		n += m
	}
	if (err == nil) != want {
		t.Errorf("%s: exchange of %d bytes: %v, want %v", c.RemoteAddr(), size, err, want)
	}
}

// TestNeighborDiscovery: a solicitation sent to the external address itself reaches packet sockets as well as the
// kernel.
func TestNeighborDiscovery(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		// Here the kernel itself holds the address: it must hear what is sent to it.
		w.node.AddAddress("eth0", vip6+"/128")
		w.set(desired(tcp(vip6)))
		w.client.Output("ip", "-6", "route", "add", vip6, "dev", "eth0")
		w.client.Send(addr(vip6))
		nstest.Until(t, patient, "the address is resolved", func() bool {
			state, _ := w.client.Neighbor("eth0", addr(vip6))
			return state&unix.NUD_REACHABLE != 0
		})
		// A probe is unicast, to the address (RFC 4861 section 7.3.3).
		mac := w.node.MAC("eth0").String()
		w.client.Output("ip", "neigh", "replace", vip6, "lladdr", mac, "dev", "eth0", "nud", "probe")
		nstest.Until(t, patient, "the probe is answered", func() bool {
			state, _ := w.client.Neighbor("eth0", addr(vip6))
			return state&unix.NUD_REACHABLE != 0
		})
	})
}

// TestConnectionLimit: connections beyond the limit are refused, those that are there go on whatever the limit becomes,
// and ended ones make room.
func TestConnectionLimit(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		for vip, client := range map[string]string{vip4: client4, vip6: client6} {
			limited := func(n int) draft {
				d := tcp(vip)
				d.ConnectionLimit = n
				return desired(d)
			}
			w.set(limited(2))
			var open []net.Conn
			for range 2 {
				c, err := dial(w.client, "tcp", client, vip, 80, patient)
				must(t, err)
				defer c.Close()
				open = append(open, c)
			}
			w.finds(silence, w.client, "tcp", client, vip, 80)
			for _, n := range []int{1, 3, 0, 2} {
				w.set(limited(n))
				for _, c := range open {
					if err := talk(c, patient); err != nil {
						t.Errorf("%s: limit %d: an established connection is cut: %v", vip, n, err)
					}
				}
			}
			// Those that were there before the limit changed do not count.
			for range 2 {
				c, err := dial(w.client, "tcp", client, vip, 80, patient)
				must(t, err)
				defer c.Close()
				open = append(open, c)
			}
			w.finds(silence, w.client, "tcp", client, vip, 80)
			for _, c := range open {
				_ = c.(*net.TCPConn).SetLinger(0)
				c.Close()
			}
			nstest.Until(t, patient, "there is room again", func() bool {
				return knock(w.client, "tcp", client, vip, 80, silent) == answer
			})
		}
	})
}

// TestRateLimit: one source opens so many connections a second, another is not held up by it.
func TestRateLimit(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		d := tcp(vip4)
		d.RateLimit = 3
		w.set(desired(d))
		opened := 0
		for range 10 {
			if knock(w.client, "tcp", client4, vip4, 80, 20*time.Millisecond) == answer {
				opened++
			}
		}
		if opened < 3 || opened > 6 {
			t.Errorf("%d connections of 10 within a fraction of a second, want 3 or hardly more", opened)
		}
		w.finds(answer, w.client, "tcp", stranger4, vip4, 80)
	})
}
