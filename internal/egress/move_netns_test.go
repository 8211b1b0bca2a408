package egress

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// with runs a test in a world whose first node has a pod.
func with(t *testing.T, f func(t *testing.T, w *world, n *node, p *pod)) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.nodes[0]
		p := w.addPod(n, 2)
		nstest.Running(t, n.translator.Run)
		w.set()
		f(t, w, n, p)
	})
}

// TestMove: an address that moves to another node, from a living owner or a dead one, loses no connection: established
// ones, ones that are being opened, flows of UDP, and connections on which the partner speaks first.
func TestMove(t *testing.T) {
	for name, dies := range map[string]bool{"planned": false, "owner dies": true} {
		t.Run(name, func(t *testing.T) { move(t, dies) })
	}
}

func move(t *testing.T, dies bool) {
	with(t, func(t *testing.T, w *world, n *node, p *pod) {
		const each = 100
		var open, waiting []net.Conn
		for _, to := range partners.all() {
			for range each {
				open = append(open, p.dial(t, "tcp", to, echoPort))
			}
			for range 3 {
				open = append(open, p.dial(t, "udp", to, echoPort))
				waiting = append(waiting, p.dial(t, "tcp", to, laterPort))
			}
		}
		for _, c := range open {
			w.translated(n, c)
		}

		// Answers to new connections are lost until the address has moved.
		w.router.Output("ip", "neigh", "replace", vip4, "lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent")
		w.router.Output("ip", "neigh", "replace", vip6, "lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent")
		opening := make(chan error)
		for _, to := range partners.all() {
			go func() {
				c, err := p.try("tcp", to, echoPort, patient)
				if err == nil {
					c.Close()
				}
				opening <- err
			}()
		}
		time.Sleep(silent)
		if dies {
			w.lan.SetDown("node2")
		}
		w.owner(w.nodes[2])

		close(w.say)
		for _, c := range waiting {
			_ = c.SetDeadline(time.Now().Add(patient))
			if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "later\n" {
				t.Errorf("%s: the partner says %q, %v", c.RemoteAddr(), line, err)
			}
		}
		for _, c := range open {
			w.translated(n, c)
		}
		for range partners.all() {
			if err := <-opening; err != nil {
				t.Errorf("a connection that was being opened: %v", err)
			}
		}
	})
}

// TestMoveBack: the address comes to the node of the pod, and goes on.
func TestMoveBack(t *testing.T) {
	with(t, func(t *testing.T, w *world, n *node, p *pod) {
		var open []net.Conn
		for _, to := range partners.all() {
			open = append(open, p.dial(t, "tcp", to, echoPort), p.dial(t, "udp", to, echoPort))
		}
		for _, i := range []int{1, 0, 2, 0} {
			w.owner(w.nodes[i])
			for _, c := range open {
				w.translated(n, c)
			}
		}
	})
}

// TestPathMTU: a pod learns that a link behind the router takes smaller packets only, whatever it sends.
func TestPathMTU(t *testing.T) {
	with(t, func(t *testing.T, w *world, n *node, p *pod) {
		const mtu = 1400
		w.router.Output("ip", "link", "set", "outer", "mtu", fmt.Sprint(mtu))
		forget := func() {
			for _, f := range []string{"-4", "-6"} {
				p.Output("ip", f, "route", "flush", "cache")
			}
		}
		learned := func(to string) bool {
			return strings.Contains(p.Output("ip", "route", "get", to), fmt.Sprint("mtu ", mtu))
		}
		for _, to := range partners.all() {
			forget()
			c := p.dial(t, "tcp", to, echoPort)
			_ = c.SetDeadline(time.Now().Add(30 * time.Second))
			go func() {
				line := make([]byte, 1<<20)
				_, _ = rand.Read(line)
				_, _ = c.Write([]byte(fmt.Sprintf("%x\n", line)))
			}()
			// The partner cannot read so long a line, and closes the connection: the data has arrived.
			_, _ = io.Copy(io.Discard, c)
			if !learned(to) {
				t.Errorf("tcp %s: %s", to, p.Output("ip", "route", "get", to))
			}

			forget()
			c = p.dial(t, "udp", to, echoPort)
			nstest.Until(t, patient, "UDP learns of the MTU to "+to, func() bool {
				_, _ = c.Write(make([]byte, mtu))
				return learned(to)
			})

			forget()
			nstest.Until(t, patient, "ping learns of the MTU to "+to, func() bool {
				_ = p.Command("ping", "-c", "1", "-W", "1", "-M", "do", "-s", fmt.Sprint(mtu), to).Run()
				return learned(to)
			})
		}
	})
}

// TestUnreachable: errors of routers reach the pod.
func TestUnreachable(t *testing.T) {
	with(t, func(t *testing.T, w *world, n *node, p *pod) {
		w.router.Output("ip", "route", "add", "unreachable", "198.51.100.0/24")
		w.router.Output("ip", "route", "add", "unreachable", "2001:db8:e::/48")
		for _, to := range []string{"198.51.100.1", "2001:db8:e::1"} {
			start := time.Now()
			// An error that arrives within the call of connect counts only when it comes again, after a second.
			if _, err := p.try("tcp", to, echoPort, patient); err == nil || time.Since(start) > 3*time.Second {
				t.Errorf("%s: %v after %v", to, err, time.Since(start))
			}
		}
		// A closed port of the partner.
		for _, to := range partners.all() {
			for _, network := range []string{"tcp", "udp"} {
				c, err := p.try(network, to, 99, patient)
				if err == nil {
					_, err = ask(c, patient)
				}
				if err == nil || !strings.Contains(err.Error(), "refused") {
					t.Errorf("%s %s: %v", network, to, err)
				}
			}
		}
	})
}

// TestSamePort: two pods on two nodes may use the same port to the same partner.
func TestSamePort(t *testing.T) {
	with(t, func(t *testing.T, w *world, n *node, p *pod) {
		other := w.nodes[2]
		q := w.addPod(other, 2)
		w.set()
		for _, to := range partners.all() {
			for _, network := range []string{"tcp", "udp"} {
				const from = 5353
				a, err := p.tryFrom(network, from, to, echoPort, patient)
				must(t, err)
				defer a.Close()
				b, err := q.tryFrom(network, from, to, echoPort, patient)
				must(t, err)
				defer b.Close()
				for range 2 {
					w.translated(n, a)
					w.translated(other, b)
				}
			}
		}
	})
}

// TestLoop: what a speaker's node sends is not passed on again, and without the MACs the time to live ends a loop.
func TestLoop(t *testing.T) {
	with(t, func(t *testing.T, w *world, n *node, p *pod) {
		// Nodes 1 and 2 take each other for the node of a slice that no node has.
		const first = 15 * lb.SlicePorts
		mirror := func(speakers bool) {
			for i, to := range []*node{w.nodes[1], w.nodes[0]} {
				d := w.desired(w.nodes[i])
				if !speakers {
					d.Speakers = nil
				}
				for _, a := range to.address().all() {
					d.Passes = append(d.Passes, lb.EgressPass{Address: addr(vips.of(a)), First: first, Via: addr(a), Link: "eth0"})
				}
				w.nodes[i].Do(func() { w.nodes[i].translator.Set(d) })
			}
		}
		passed := func() (out []uint64) {
			for _, i := range []int{0, 1} {
				w.nodes[i].Do(func() {
					for _, f := range w.nodes[i].translator.State().Families {
						out = append(out, f.Passed)
					}
				})
			}
			return out
		}
		send := func() {
			for _, vip := range vips.all() {
				w.partner.Do(func() {
					c, err := net.Dial("udp", net.JoinHostPort(vip, fmt.Sprint(first+1)))
					must(t, err)
					_, _ = c.Write([]byte("stray"))
					c.Close()
				})
			}
		}
		mirror(true)
		send()
		nstest.Until(t, patient, "the strays are passed on", func() bool {
			n := passed()
			return n[2] == 1 && n[3] == 1
		})
		time.Sleep(silent)
		if n := passed(); n[0] != 0 || n[1] != 0 {
			t.Errorf("packets of a speaker were passed on: %v", n)
		}

		mirror(false)
		before := passed()
		send()
		const hops = 64
		last := before
		nstest.Until(t, patient, "the strays go round no more", func() bool {
			previous := last
			time.Sleep(silent)
			last = passed()
			return last[0] == previous[0] && last[1] == previous[1] && last[0] > before[0]
		})
		if last[0]-before[0] > hops || last[1]-before[1] > hops {
			t.Errorf("one stray was passed on %v times", last)
		}
	})
}
