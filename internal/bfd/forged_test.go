package bfd

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// connectPod joins a pod to the node, as network plugins do that check no sources: by a pair of links without a subnet. In it
// are the router's addresses, and its packets for the node's addresses reach the node.
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
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	say(t, pod, from, to, c.LocalAddr().(*net.UDPAddr).AddrPort().Port(), singleHopTTL, down())
	if _, _, err := c.ReadFrom(make([]byte, 100)); err != nil {
		t.Fatalf("nothing that the pod sends arrives: %v", err)
	}
}

// A pod of the node that may send with any source and any TTL (NET_RAW) cannot end a session: its link is not one by which
// the router is reached.
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
			if now := l.status(name); now.State != Up || now.Ups != before.Ups || now.Failures != before.Failures || now.SwitchedOff {
				t.Errorf("a pod touched %s: %+v, before %+v", name, now, before)
			}
		}
	})
}

// A flood with the address of one neighbor does not touch the session with another one, on the same port. It has more packets
// than a socket has room for, and fewer than links and kernels lose.
func TestFloodBeside(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		connect(t, self, ns, nstest.New(t))
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
			if now := s.status(name); now.State != Up || now.Failures != before.Failures {
				t.Errorf("the session beside the flooded one fell: %+v, before %+v", now, before)
			}
		}
	})
}
