package egress

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestTranslate: connections of a pod leave with the address and a port of its node's slice, whoever gets the answers.
func TestTranslate(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.nodes[0]
		p := w.addPod(n, 2)
		nstest.Running(t, n.translator.Run)
		w.set()
		if faults := n.translator.Faults(); len(faults) > 0 {
			t.Fatal(faults)
		}
		for _, owner := range w.nodes {
			w.owner(owner)
			each(t, func(t *testing.T, network, to string) { w.translated(n, p.dial(t, network, to, echoPort)) })
			for _, to := range partners.all() {
				p.Output("ping", "-c", "1", "-W", "2", to)
			}
		}
		for _, family := range []string{"ip", "ip6"} {
			t.Log(n.list(family))
		}
	})
}

// TestBulk: large transfers and large datagrams arrive, past a router with a smaller MTU behind it.
func TestBulk(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.nodes[0]
		p := w.addPod(n, 2)
		w.set()
		for _, to := range partners.all() {
			c := p.dial(t, "tcp", to, bulkPort)
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			got, err := io.Copy(io.Discard, c)
			if err != nil || got != bulkSize {
				t.Errorf("%s: %d bytes, %v", to, got, err)
			}
			c = p.dial(t, "udp", to, bigPort)
			_ = c.SetDeadline(time.Now().Add(patient))
			_, err = c.Write([]byte("hello"))
			must(t, err)
			if n, err := c.Read(make([]byte, 2*bigSize)); err != nil || n != bigSize {
				t.Errorf("%s: datagram of %d bytes, %v", to, n, err)
			}
		}
	})
}

// TestClosed: new connections of a closed source are refused at once, and older ones go on.
func TestClosed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.nodes[0]
		p := w.addPod(n, 2)
		w.set()
		open4, open6 := p.dial(t, "tcp", partner4, echoPort), p.dial(t, "tcp", partner6, echoPort)
		w.translated(n, open4)
		w.translated(n, open6)
		p.closed = "CutOff"
		w.set()
		for _, to := range partners.all() {
			start := time.Now()
			_, err := p.try("tcp", to, echoPort, patient)
			if err == nil || !strings.Contains(err.Error(), "refused") {
				t.Errorf("%s: new connection: %v", to, err)
			}
			_, err = ask(p.dial(t, "udp", to, echoPort), patient)
			if err == nil || strings.Contains(err.Error(), "timeout") {
				t.Errorf("%s: new datagrams: %v", to, err)
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("%s: refused after %v", to, took)
			}
		}
		w.translated(n, open4)
		w.translated(n, open6)
	})
}

// TestFamilyWithoutAddress: pods of a Service without an IPv6 address cannot open IPv6 connections to the outside.
func TestFamilyWithoutAddress(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.nodes[0]
		p := w.addPod(n, 2)
		w.set()
		d := w.desired(n)
		for i := range d.Sources {
			if d.Sources[i].Pod.Is6() {
				d.Sources[i] = lb.EgressSource{Pod: d.Sources[i].Pod, UID: p.uid, Closed: "no IPv6 address"}
			}
		}
		n.Do(func() { n.translator.Set(d) })

		w.translated(n, p.dial(t, "tcp", partner4, echoPort))
		_, err := p.try("tcp", partner6, echoPort, patient)
		if err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("IPv6: %v", err)
		}
		if table := n.list("ip6"); !strings.Contains(table, "chain forward") {
			t.Errorf("the table of IPv6 is\n%s", table)
		}
	})
}

// TestNeighbour: a partner on the LAN itself answers the owner too.
func TestNeighbour(t *testing.T) {
	with(t, func(t *testing.T, w *world, n *node, p *pod) {
		near := newHost(t)
		w.join(near, "near")
		near.AddAddress("eth0", "192.0.2.50/24", "2001:db8::50/64")
		near.Serve(fmt.Sprintf(":%d", echoPort), whoami)
		for _, vip := range vips.all() {
			owner := w.nodes[1].MAC("eth0").String()
			near.Output("ip", "neigh", "replace", vip, "lladdr", owner, "dev", "eth0", "nud", "permanent")
		}
		for _, to := range []string{"192.0.2.50", "2001:db8::50"} {
			w.translated(n, p.dial(t, "tcp", to, echoPort))
			p.Output("ping", "-c", "1", "-W", "2", to)
		}
	})
}

// TestNoLink: a source whose link is unknown, or whose address has no link, is closed. A source without a slice leaves
// with the address of the node.
func TestNoLink(t *testing.T) {
	with(t, func(t *testing.T, w *world, n *node, p *pod) {
		d := w.desired(n)
		for i := range d.Sources {
			d.Sources[i].Link = "eth9"
		}
		n.translator.Set(d)
		for _, to := range partners.all() {
			if !refused(p, to) {
				t.Errorf("%s: not refused", to)
			}
		}
		if got := n.translator.Faults()[addr(p.v4)]; got != `this node has no link "eth9"` {
			t.Errorf("fault %q", got)
		}
		d.Sources = slices.Clone(d.Sources)
		for i := range d.Sources {
			d.Sources[i].First = 0
		}
		n.translator.Set(d)
		for _, to := range partners.all() {
			if _, source := outward(t, p, "tcp", to); source != n.address().of(to) {
				t.Errorf("the partner sees %s", source)
			}
		}
	})
}

// TestMetrics: what the tables do is counted.
func TestMetrics(t *testing.T) {
	with(t, func(t *testing.T, w *world, n *node, p *pod) {
		q := w.addPod(n, 3)
		q.closed = "CutOff"
		w.set()
		for _, to := range partners.all() {
			w.translated(n, p.dial(t, "tcp", to, echoPort))
			if !refused(q, to) {
				t.Errorf("%s: not refused", to)
			}
		}
		var passed []uint64
		w.nodes[1].Do(func() {
			for _, f := range w.nodes[1].translator.State().Families {
				passed = append(passed, f.Passed)
			}
		})
		for i, f := range n.translator.State().Families {
			if f.Open != 1 || f.Closed != 1 || f.Faulty != 0 || f.Rejected == 0 || f.Failure != "" || passed[i] == 0 {
				t.Errorf("%+v, the owner passed %d packets", f, passed[i])
			}
		}
		registry := prometheus.NewPedanticRegistry()
		must(t, registry.Register(n.translator))
		list, err := registry.Gather()
		must(t, err)
		if len(list) != 6 {
			t.Errorf("%d metrics", len(list))
		}
	})
}

// TestFlap: a pod whose link was down, and whose route is missing for a moment, keeps its connections.
func TestFlap(t *testing.T) {
	with(t, func(t *testing.T, w *world, n *node, p *pod) {
		var open []net.Conn
		each(t, func(t *testing.T, network, to string) { open = append(open, p.dial(t, network, to, echoPort)) })
		n.SetDown(p.link)
		n.SetUp(p.link)
		for _, c := range open {
			_ = c.SetDeadline(time.Now().Add(silent))
			_, _ = c.Write([]byte("lost\n"))
		}
		time.Sleep(silent)
		if faults := n.translator.Faults(); len(faults) > 0 {
			t.Errorf("faults: %v", faults)
		}
		n.AddAddress(p.link, "fe80::1/64")
		for _, a := range p.all() {
			n.Output("ip", "route", "replace", a, "dev", p.link)
		}
		for _, c := range open {
			nstest.Until(t, patient, "the connection to "+c.RemoteAddr().String()+" goes on", func() bool {
				_, err := ask(c, silent)
				return err == nil
			})
		}
	})
}

// TestHairpin: a pod's connection that a router sends back to the cluster has an egress address as its own source. It
// reaches a pod of this node.
func TestHairpin(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		n, other := w.nodes[0], w.nodes[1]
		p := w.addPod(n, 2)
		w.set()
		p.Serve(fmt.Sprintf(":%d", echoPort), whoami)
		other.AddAddress("eth0", vip4+"/32", vip6+"/128")
		for _, to := range p.all() {
			other.Output("ip", "route", "add", to, "via", n.address().of(to))
			other.Do(func() {
				d := net.Dialer{Timeout: patient, LocalAddr: &net.TCPAddr{IP: net.ParseIP(vips.of(to))}}
				c, err := d.Dial("tcp", net.JoinHostPort(to, fmt.Sprint(echoPort)))
				must(t, err)
				defer c.Close()
				source, err := ask(c, patient)
				must(t, err)
				if source.Addr().String() != vips.of(to) {
					t.Errorf("the pod sees %v", source)
				}
			})
		}
	})
}
