package layer2

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// host is the MAC and the IPv4 address of the n-th foreign host.
func host(n byte) (lb.MAC, netip.Addr) {
	return lb.MAC{2, 0x54, 0, 0, 0, n}, netip.AddrFrom4([4]byte{192, 0, 2, n})
}

func askedBy(n byte) []byte {
	mac, addr := host(n)
	return arpRequest(v4, func(p *arp.Packet, f *ethernet.Frame) {
		p.SenderIP, p.SenderHardwareAddr, f.Source = addr, mac.HardwareAddr(), mac.HardwareAddr()
	})
}

// TestForeign: machines that ask are known for ten minutes, but not speakers, nor machines
// without an address yet; of many the latest are known.
func TestForeign(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		p.Set(Desired{Announcements: ourAnnouncements, Speakers: map[lb.MAC]bool{ourMAC: true, otherMAC: true}})
		expect := func(when string, n int, want ...lb.Question) {
			t.Helper()
			same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
			if diff := cmp.Diff(want, p.Foreign("eth0", n), same); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		p.put(arpProbeBy(askerMAC))
		p.put(arpRequest(v4, func(a *arp.Packet, f *ethernet.Frame) {
			a.SenderHardwareAddr, f.Source = otherMAC.HardwareAddr(), otherMAC.HardwareAddr()
		}))
		expect("nobody else", 8)
		p.put(arpRequest(v4, nil))
		p.put(ns(v6, nil))
		asker := []lb.Question{{Link: "eth0", MAC: askerMAC, Address: asker4}, {Link: "eth0", MAC: askerMAC, Address: asker6}}
		expect("who asked", 8, asker...)
		expect("one of them", 1, asker[0])
		mac, addr := host(9)
		p.put(askedBy(9))
		expect("the machines first", 8, lb.Question{Link: "eth0", MAC: askerMAC, Address: asker4}, lb.Question{Link: "eth0", MAC: mac, Address: addr},
			lb.Question{Link: "eth0", MAC: askerMAC, Address: asker6})
		for n := range byte(20) {
			time.Sleep(2 * machineInterval)
			p.put(askedBy(n + 20))
		}
		got := p.Foreign("eth0", 20)
		var want []lb.Question
		for n := byte(39); n > 31; n-- {
			mac, addr := host(n)
			want = append(want, lb.Question{Link: "eth0", MAC: mac, Address: addr})
		}
		want = slices.Insert(want, 1, asker[1])
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("the latest (-want +got):\n%s", diff)
		}
		time.Sleep(machineAge)
		expect("later", 8)
	})
}

// TestForgedAskers: of many machines that ask without end, and never answer, none displaces one that answered, which comes
// before them.
func TestForgedAskers(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		p.Set(Desired{Announcements: ourAnnouncements})
		p.put(arpRequest(v4, nil))
		p.answered(&tap{socket: socket{link: eth0, proto: p.protocols[0]}}, message{mac: askerMAC, claimed: asker4})
		for range 3 {
			for n := range byte(200) {
				p.put(askedBy(n + 1))
				time.Sleep(machineInterval / 10)
			}
		}
		got := p.Foreign("eth0", 20)
		if len(got) != mostMachines || got[0] != (lb.Question{Link: "eth0", MAC: askerMAC, Address: asker4}) {
			t.Errorf("%d machines: %v", len(got), got)
		}
	})
}

// TestGatewayIsRemembered: the kernel forgets the MAC of a router that it cannot reach,
// and just then we need to ask it.
func TestGatewayIsRemembered(t *testing.T) {
	lan := newFakeLAN(eth0)
	r := lan.responder()
	gateway := lb.Neighbour{Address: asker4, MAC: askerMAC}
	c := r.foreignByLink.on("eth0")
	for _, tt := range []struct {
		name string
		read []lb.Neighbour
		want int
	}{
		{"not resolved yet", []lb.Neighbour{{Address: asker4}}, 0},
		{"resolved", []lb.Neighbour{gateway}, 1},
		{"forgotten", []lb.Neighbour{{Address: asker4}}, 1},
		{"another one", []lb.Neighbour{{Address: foreign4}}, 0},
		{"none", nil, 0},
	} {
		c.learn(tt.read)
		got := r.Foreign("eth0", 8)
		if len(got) != tt.want || len(got) == 1 && got[0] != (lb.Question{Link: "eth0", MAC: askerMAC, Address: asker4}) {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
