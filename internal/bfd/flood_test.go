package bfd

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/ipv4"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// gaugeOf reads a metric without labels.
func gaugeOf(t testing.TB, c prometheus.Collector, name string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if m := f.GetMetric(); f.GetName() == name {
			return m[0].GetGauge().GetValue() + m[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// A flood with a neighbor's own address and TTL, each packet a poll of the session, costs neither the heartbeats nor the
// sessions of other sockets anything: the process keeps its priority, and a session over IPv6 stays up.
func TestFlood(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		connect(t, self, ns, nstest.New(t))
		f := startFRR(t, ns, frrConfig)
		s := startSpeaker(t, "192.0.2.1")
		s.Set(append(only("v6"), only("v4")...))
		s.until("the sessions are up", func() bool { return s.status("v6").State == Up && f.up("192.0.2.1") })
		realtime := gaugeOf(t, s.heartbeats, "holdfast_heartbeat_realtime")
		failures := s.status("v6").Failures
		flood(t, ns, "192.0.2.2", "192.0.2.1:3784", 0, 3*time.Second)
		s.until("counters are reported", func() bool { return s.status("v4").Received > 100 })
		if now := gaugeOf(t, s.heartbeats, "holdfast_heartbeat_realtime"); now != realtime {
			t.Errorf("real-time priority was %v and is %v", realtime, now)
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
			c, err = net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(from)}, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
			if err == nil {
				err = ipv4.NewConn(c).SetTTL(singleHopTTL)
			}
			if err != nil {
				t.Fatal(err)
			}
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
