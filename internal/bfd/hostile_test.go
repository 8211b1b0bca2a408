package bfd

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/ipv4"
)

// TestAuthenticationRefused: a neighbor that authenticates its packets is refused, and the status shows it, until it
// stops or for a while: one packet may be forged, and BGP waits meanwhile.
func TestAuthenticationRefused(t *testing.T) {
	w := newWorld(t, 1)
	w.set(0)
	p := packet{state: Down, multiplier: 3, myDiscr: 9, transmit: time.Second, receive: time.Second}
	var b [packetLen]byte
	p.marshal(&b)
	with := append(b[:], 1, 4, 0, 'x')
	with[1] |= authenticationBit
	with[3] = byte(len(with))
	w.ends[0].table.receive(w.at, w.session(0), with)
	if s := w.status(0); s.State != Down || s.Received != 0 || s.Rejected != 1 ||
		s.Error != "the neighbor authenticates its packets, which is not supported" {
		t.Errorf("%+v", s)
	}
	w.run(authenticatedTime)
	if s := w.status(0); s.Error != "" {
		t.Errorf("after a while: %+v", s)
	}
	w.ends[0].table.receive(w.at, w.session(0), with)
	w.ends[0].table.receive(w.at, w.session(0), b[:])
	if s := w.status(0); s.State != Init || s.Error != "" {
		t.Errorf("without authentication: %+v", s)
	}
}

// TestNobodySpeaksForAnother: one peer cannot speak for another: a packet for one session with the discriminator of
// another is rejected.
func TestNobodySpeaksForAnother(t *testing.T) {
	w := settled(t, 2)
	s := w.session(0)
	p := packet{state: Down, multiplier: 3, myDiscr: 9, yourDiscr: s.myDiscr + 1}
	var b [packetLen]byte
	p.marshal(&b)
	w.ends[0].table.receive(w.at, s, b[:])
	if s.state != Up || s.rejected != 1 {
		t.Errorf("the state is %v, %d were rejected", s.state, s.rejected)
	}
}

// TestHostileNeighbor: whatever a neighbor sends, the table stays whole: it has a next time that is not in the past for
// ever, it answers each packet by two at most, and the session comes up again when the neighbor is itself again.
func TestHostileNeighbor(t *testing.T) {
	seeds(t, 50, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		w.both()
		r := rand.New(rand.NewPCG(seed, 2))
		for range 2000 {
			w.run(time.Duration(r.Uint64N(uint64(20 * time.Millisecond))))
			s := w.session(0)
			p := packet{
				diagnostic: Diagnostic(r.Uint64N(32)), state: State(r.Uint64N(4)), poll: r.Uint64N(2) == 0,
				final:  r.Uint64N(2) == 0,
				demand: r.Uint64N(2) == 0, multiplier: uint8(r.Uint64N(256)), myDiscr: r.Uint32(),
				yourDiscr: s.myDiscr * uint32(r.Uint64N(2)),
				transmit:  time.Duration(r.Uint32()) >> r.Uint64N(32) * time.Microsecond,
				receive:   time.Duration(r.Uint32()) >> r.Uint64N(32) * time.Microsecond,
			}
			var b [packetLen]byte
			p.marshal(&b)
			before := len(w.ends[0].sent)
			w.ends[0].table.receive(w.at, s, b[:r.Uint64N(packetLen+1)])
			w.ends[0].table.receive(w.at, s, b[:])
			w.tick(0)
			if n := len(w.ends[0].sent) - before; n > 3 {
				t.Fatalf("one packet caused %d", n)
			}
			if w.ends[0].table.due(w.at) <= w.at {
				t.Fatalf("something is due at once, again and again: %+v", *s)
			}
		}
		// Its last word may have been a detection time of days; a restart ends that.
		w.ends[1].table = newTable(w.random.Uint64)
		w.set(1)
		w.settled()
	})
}

// FuzzTable feeds datagrams to a table with a session that is up.
func FuzzTable(f *testing.F) {
	var b [packetLen]byte
	p := sample()
	p.marshal(&b)
	f.Add(b[:], true)
	f.Fuzz(func(t *testing.T, in []byte, known bool) {
		w := settled(t, 1)
		if s := w.session(0); known && len(in) >= packetLen {
			p, _ := parse(in)
			p.yourDiscr = s.myDiscr
			p.marshal((*[packetLen]byte)(in[:packetLen]))
		}
		w.ends[0].table.receive(w.at, w.session(0), in)
		w.run(time.Second)
		if w.ends[0].table.due(w.at) <= w.at {
			t.Errorf("something is due at once for ever")
		}
	})
}

// gaugeOf reads a metric without labels.
func gaugeOf(t testing.TB, c prometheus.Collector, name string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	must(t, err)
	for _, f := range families {
		if m := f.GetMetric(); f.GetName() == name {
			return m[0].GetGauge().GetValue() + m[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestFlood: a flood with a neighbor's own address and TTL, each packet a poll of the session, costs neither the
// heartbeats nor the sessions of other sockets anything: the process keeps its priority, and a session over IPv6 stays
// up.
func TestFlood(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		_, ns, _ := connect(t)
		f := startFRR(t, ns, frrConfig)
		s := startSpeaker(t, "192.0.2.1")
		s.Set(append(only("v6"), only("v4")...))
		s.until("the sessions are up", func() bool { return s.status("v6").State == Up && f.up("192.0.2.1") })
		realtime := gaugeOf(t, s.heartbeats, "holdfast_heartbeat_realtime")
		failures := s.status("v6").Failures
		flood(t, ns, "192.0.2.2", "192.0.2.1:3784", 0, 3*time.Second)
		s.until("counters are reported", func() bool { return s.status("v4").Received > 100 })
		if after := gaugeOf(t, s.heartbeats, "holdfast_heartbeat_realtime"); after != realtime {
			t.Errorf("real-time priority was %v and is %v", realtime, after)
		}
		if n := gaugeOf(t, s.heartbeats, "holdfast_heartbeat_overruns_total"); n > 0 {
			t.Errorf("%v overruns", n)
		}
		if v6 := s.status("v6"); v6.Failures != failures || v6.State != Up {
			t.Errorf("a flood over IPv4 brought a session over IPv6 down: %+v", v6)
		}
		late := gaugeOf(t, s.heartbeats, "holdfast_heartbeat_lateness_seconds")
		t.Logf("heartbeats were %v s late at worst, and %d packets of the flood were read", late, s.status("v4").Received)
		if realtime == 1 && late > 0.02 {
			t.Errorf("heartbeats were %v s late", late)
		}
		s.until("the flooded session recovers", func() bool { return s.status("v4").State == Up && f.up("192.0.2.1") })
	})
}

// flood sends as fast as two threads can, or as many packets each 10 ms as each may.
func flood(t *testing.T, ns *nstest.NS, from, to string, each int, d time.Duration) {
	t.Helper()
	packet := down()
	packet[offFlags] |= pollBit
	var senders sync.WaitGroup
	var sent [2]int
	for i := range sent {
		var c *net.UDPConn
		ns.Do(func() {
			var err error
			c, err = net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(from)},
				net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
			if err == nil {
				err = ipv4.NewConn(c).SetTTL(singleHopTTL)
			}
			must(t, err)
		})
		senders.Go(func() {
			defer c.Close()
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for end := time.Now().Add(d); time.Now().Before(end); sent[i]++ {
				_, _ = c.Write(packet)
				if each > 0 && sent[i]%each == 0 {
					<-pace.C
				}
			}
		})
	}
	senders.Wait()
	t.Logf("%d packets sent", sent[0]+sent[1])
}

// connectPod joins a pod to the node, as network plugins do that check no sources: by a pair of links without a subnet.
// In it are the router's addresses, and its packets for the node's addresses reach the node.
func connectPod(t *testing.T, self *nstest.NS) *nstest.NS {
	t.Helper()
	pod := nstest.New(t)
	nstest.Veth(t, self, "cali1", pod, "eth0")
	for _, conf := range []string{"all", "cali1", "default"} {
		self.Sysctl("ipv4/conf/"+conf+"/rp_filter", "0")
	}
	for _, s := range sides {
		router, node := netip.MustParseAddr(s.router), netip.MustParseAddr(s.node)
		if router.IsLinkLocalUnicast() {
			continue
		}
		pod.AddAddress("eth0", netip.PrefixFrom(router, router.BitLen()).String())
		pod.Output("ip", "route", "add", netip.PrefixFrom(node, node.BitLen()).String(), "dev", "eth0")
		pod.Output("ip", "neigh", "add", s.node, "lladdr", self.MAC("cali1").String(), "dev", "eth0", "nud", "permanent")
	}
	return pod
}

// arrives makes sure that the node takes what a pod sends with a router's address.
func arrives(t *testing.T, pod *nstest.NS, from, to string) {
	t.Helper()
	c, err := net.ListenPacket("udp", net.JoinHostPort(to, "0"))
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	say(t, pod, from, to, c.LocalAddr().(*net.UDPAddr).AddrPort().Port(), singleHopTTL, down())
	if _, _, err := c.ReadFrom(make([]byte, 100)); err != nil {
		t.Fatalf("nothing that the pod sends arrives: %v", err)
	}
}

// TestForgedByPod: a pod of the node that may send with any source and any TTL (NET_RAW) cannot end a session: its link
// is not one by which the router is reached.
func TestForgedByPod(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLab(t, "FRR")
		pod := connectPod(t, l.self)
		l.Set(l.peers())
		l.up()
		for name, s := range sides {
			if name == "link" {
				continue // the pod's link-local addresses are its own link's
			}
			arrives(t, pod, s.router, s.node)
			port := uint16(singleHopPort)
			if strings.HasPrefix(name, "far") {
				port = multiHopPort
			}
			before := l.status(name)
			for _, state := range []State{Down, AdminDown} {
				forged := down()
				forged[offFlags] = byte(state) << stateShift
				for range 5 {
					say(t, pod, s.router, s.node, port, singleHopTTL, forged)
				}
			}
			l.until("the router was heard after the pod", func() bool { return l.status(name).Received > before.Received })
			if after := l.status(name); after.State != Up || after.Ups != before.Ups || after.Failures != before.Failures ||
				after.SwitchedOff {
				t.Errorf("a pod touched %s: %+v, before %+v", name, after, before)
			}
		}
	})
}

// TestFloodBeside: a flood with the address of one neighbor does not touch the session with another one, on the same
// port. It has more packets than a socket has room for, and fewer than links and kernels lose.
func TestFloodBeside(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		_, ns, _ := connect(t)
		ns.AddAddress("lan", "192.0.2.3/24")
		ns.AddAddress("up", "203.0.113.3/24")
		f := startFRR(t, ns, frrConfig)
		s := startSpeaker(t, "192.0.2.1")
		for name, other := range map[string]struct{ from, to string }{
			"v4": {"192.0.2.3", "192.0.2.1:3784"}, "far4": {"203.0.113.3", "198.51.100.1:4784"},
		} {
			second := only(name)[0]
			second.Name, second.Address = "flooded", netip.MustParseAddr(other.from)
			s.Set(append(only(name), second))
			s.until(name+" is up", func() bool { return s.status(name).Remote == Up && f.up(sides[name].node) })
			before := s.status(name)
			flood(t, ns, other.from, other.to, 200, 3*time.Second)
			s.until("the flood is counted", func() bool { return s.status("flooded").Received > 100 })
			if after := s.status(name); after.State != Up || after.Failures != before.Failures {
				t.Errorf("the session beside the flooded one fell: %+v, before %+v", after, before)
			}
		}
	})
}
