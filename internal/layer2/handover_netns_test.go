package layer2

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"golang.org/x/net/ipv6"
)

// TestNoQuestionIsLostInAMove: while addresses move to and fro, the far host's kernel
// gets answers at all times, whichever node learns of the move first. At the end it knows
// the new owner without a question.
//
// Trap: different views leave an address without an owner for a moment
// (MetalLB #589, #740).
func TestNoQuestionIsLostInAMove(t *testing.T) {
	onLAN(t, func(t *testing.T, l *lan) {
		l.neigh("retrans_time_ms", "1000")
		l.second.Set(l.elsewhere())
		l.first.Set(l.here())
		nstest.Until(t, within, "first answers", func() bool { return l.ask(t, v4) != "" && l.ask(t, v6) != "" })
		from, to := l.first, l.second
		for move := range 4 {
			if loserFirst := move < 2; loserFirst {
				from.Set(l.elsewhere())
				l.answered(t, "while the new owner does not know yet")
				to.Set(l.here())
			} else {
				to.Set(l.here())
				l.answered(t, "while the old owner does not know yet")
				from.Set(l.elsewhere())
			}
			l.answered(t, "once both know")
			nstest.Until(t, within, "end of the handover", func() bool { return len(from.HandingOver()) == 0 })
			l.answered(t, "after the handover")
			l.moved(t, from, to)
			from, to = to, from
		}
	})
}

// TestMoveOnPrivateVLAN: the ports of two nodes are isolated from each other, as on private VLANs: neither hears the
// other's ARP and NDP. They move addresses to and fro by messages under their key, and the far host gets answers at all
// times.
//
// Trap: the former owner answers for a minute more, beside the new one.
func TestMoveOnPrivateVLAN(t *testing.T) {
	onLAN(t, func(t *testing.T, l *lan) {
		for _, port := range []string{"port0", "port2"} {
			l.bridge.Output("bridge", "link", "set", "dev", port, "isolated", "on")
		}
		l.neigh("retrans_time_ms", "1000")
		from, to := l.first, l.second
		tell := func(addrs []netip.Addr) {
			var owned []netip.Addr
			for i, owns := range to.Owns(addrs, true) {
				if owns {
					owned = append(owned, addrs[i])
				}
			}
			from.EndHandovers(owned)
		}
		l.first.Set(l.here())
		nstest.Until(t, within, "first answers", func() bool { return l.ask(t, v4) != "" && l.ask(t, v6) != "" })
		for move := range 4 {
			loserFirst := move < 2
			if loserFirst {
				from.Set(l.elsewhere())
				tell(from.HandingOver())
			} else {
				to.Set(l.here())
			}
			l.answered(t, "while one node does not know yet")
			if loserFirst {
				to.Set(l.here())
			} else {
				from.Set(l.elsewhere())
			}
			nstest.Until(t, within, "one owner", func() bool {
				tell(from.HandingOver())
				l.answered(t, "while both tell each other")
				return len(from.HandingOver()) == 0
			})
			l.moved(t, from, to)
			from, to = to, from
		}
	})
}

// answered checks that both addresses are answered.
func (l *lan) answered(t *testing.T, when string) {
	t.Helper()
	for _, addr := range []netip.Addr{v4, v6} {
		if l.ask(t, addr) == "" {
			t.Fatalf("%s no node answers for %s", when, addr)
		}
	}
}

// moved waits until the far host knows the new owner of both addresses. The former one must have heard it.
func (l *lan) moved(t *testing.T, from, to *Responder) {
	t.Helper()
	nstest.Until(t, within, "the far host knows the new owner", func() bool { return l.knowsOnly(to) })
	if n := from.counters.handovers[handoverUnheard].Load(); n != 0 {
		t.Errorf("%d handovers ended without having heard the new owner", n)
	}
}

// knowsOnly reports whether the far host knows this owner of both addresses.
func (l *lan) knowsOnly(owner *Responder) bool {
	want := l.other.MAC("eth0")
	if owner == l.first {
		want = l.node.MAC("eth0")
	}
	_, mac4 := l.far.Neighbor("eth0", v4)
	_, mac6 := l.far.Neighbor("eth0", v6)
	return mac4.String() == want.String() && mac6.String() == want.String()
}

// TestTwoOwnersBecomeOne: after a partition in which each side believed the other dead,
// the far host knows the remaining owner without a question.
//
// Trap: two owners, and clients that stay with the wrong one (kube-vip #996, #1579,
// #1775; Cilium #48456).
func TestTwoOwnersBecomeOne(t *testing.T) {
	onLAN(t, func(t *testing.T, l *lan) {
		l.second.Set(l.here())
		nstest.Until(t, within, "the owner that stays answers", func() bool {
			return l.ask(t, v4) != "" && l.ask(t, v6) != ""
		})
		l.first.Set(l.here())
		nstest.Until(t, within, "the other owner has announced itself too", func() bool { return l.knowsOnly(l.first) })
		l.first.Set(l.elsewhere())
		nstest.Until(t, within, "the far host knows the owner that stays", func() bool { return l.knowsOnly(l.second) })
	})
}

// TestStandingIn: the stand-in answers questions that the owner's dead speaker cannot
// answer, and traffic reaches the owner.
func TestStandingIn(t *testing.T) {
	onLAN(t, func(t *testing.T, l *lan) {
		owner := lb.MACFrom(l.node.MAC("eth0"))
		set := Desired{
			Announcements: announcing([]lb.Announcement{{Address: v4, MAC: owner}, {Address: v6, MAC: owner}}),
			Speakers:      l.speakers(),
		}
		l.second.Set(set)
		nstest.Until(t, within, "answers with the owner's MAC", func() bool {
			return l.ask(t, v4) == owner.String() && l.ask(t, v6) == owner.String()
		})
		// The owner's kernel serves the address, as with kube-proxy.
		l.node.AddAddress("lo", v4.String()+"/32", v6.String()+"/128")
		l.node.Sysctl("ipv4/conf/all/arp_ignore", "1")
		for _, addr := range []netip.Addr{v4, v6} {
			c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 9)))
			must(t, err)
			defer c.Close()
			forget(l.far, addr)
			nstest.Until(t, within, "what is sent to "+addr.String()+" reaches the owner", func() bool {
				l.far.Send(addr)
				must(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
				_, _, err := c.ReadFrom(make([]byte, 1))
				return err == nil
			})
		}
	})
}

// TestConflictWithARealHost: an address of another host's kernel is not announced, and
// the conflict names the host. When the host removes the address, it is announced.
//
// Trap: duplicates go undetected (MetalLB #306).
func TestConflictWithARealHost(t *testing.T) {
	besideHost(t, func(t *testing.T, n *realNetwork) {
		r := timedResponder(t, Timers{AnnounceWait: 2 * time.Second, RateLimitInterval: 500 * time.Millisecond})
		r.Set(Desired{Announcements: announcing([]lb.Announcement{{Address: foreign4}})})
		nstest.Until(t, within, "link in use", func() bool { return len(r.State().Links) == 1 })

		n.far.AddAddress("eth0", v4.String()+"/24", v6.String()+"/64")
		nstest.Until(t, within, "a host that hears questions", func() bool {
			return strings.Contains(n.far.Output("ip", "maddr", "show", "dev", "eth0"), solicitedNode(v6).addr.String())
		})
		r.Set(Desired{Announcements: announcing(bothFamilies(probed))})
		far := lb.MACFrom(n.far.MAC("eth0"))
		for i := range 2 {
			nstest.Until(t, within, "conflict found", func() bool {
				s := r.State().Addresses[i]
				return !s.Answered && len(s.Conflicts) == 1 && s.Conflicts[0].MAC == far && s.Conflicts[0].Link == "eth0"
			})
		}
		for i := range 2 {
			if n := r.counters.announcements[i][sent].Load(); n > 2 {
				t.Errorf("%d announcements of another host's address", n)
			}
		}
		n.far.Output("ip", "addr", "del", v4.String()+"/24", "dev", "eth0")
		n.far.Output("ip", "addr", "del", v6.String()+"/64", "dev", "eth0")
		nstest.Until(t, within, "answers once they are free", func() bool {
			return n.ask(t, v4) == n.mac() && n.ask(t, v6) == n.mac()
		})
	})
}

// TestKnock with real kernels at both ends: a port with a listener, a port without, and ports whose packets a filter
// drops or rejects. The machine keeps no connection, even where a firewall here takes its answer from the kernel.
func TestKnock(t *testing.T) {
	onLAN(t, func(t *testing.T, l *lan) {
		nstest.Until(t, within, "links known", func() bool { return len(l.first.config.Links()) > 0 })
		us := l.first.config.Links()[len(l.first.config.Links())-1]
		mac := lb.MACFrom(l.far.MAC("eth0"))
		l.far.AddAddress("eth0", v4.String()+"/24", v6.String()+"/64")
		l.far.Do(func() {
			listener, err := net.Listen("tcp", ":80")
			must(t, err)
			t.Cleanup(func() { listener.Close() })
		})
		l.far.Output("nft", "add table inet f; add chain inet f in { type filter hook input priority 0; }; add rule inet "+
			"f in tcp dport 82 drop; "+
			"add rule inet f in tcp dport 83 reject with icmpx port-unreachable")
		l.node.Output("nft", "add table inet f; add chain inet f in { type filter hook input priority 0; }; add rule inet "+
			"f in tcp flags syn,ack drop")
		for _, a := range []netip.Addr{v4, v6} {
			for port, want := range map[uint16]PortState{80: PortOpen, 81: PortRefuses, 82: PortUnanswered, 83: PortRejected} {
				start := time.Now()
				got, err := l.first.ProbePort(t.Context(), us, mac, netip.AddrPortFrom(a, port), time.Second)
				if took := time.Since(start); err != nil || got != want || (took >= time.Second) != (want == PortUnanswered) {
					t.Errorf("%s port %d: %q, %v after %v", a, port, got, err, took)
				}
			}
		}
		nstest.Until(t, within, "no half-open connection", func() bool {
			return l.far.Output("ss", "-Htn", "state", "syn-recv") == ""
		})
		if got, err := l.first.ProbePort(t.Context(), us, mac, netip.MustParseAddrPort("203.0.113.1:80"),
			time.Second); err == nil {
			t.Errorf("beyond the subnet: %q", got)
		}
	})
}

// TestKnockParse: a segment about other ports or other addresses, or one cut short, is no answer.
func TestKnockParse(t *testing.T) {
	for _, addrs := range [][2]string{{"192.0.2.1", "192.0.2.9"}, {"2001:db8::1", "2001:db8::9"}} {
		from, to := netip.AddrPortFrom(netip.MustParseAddr(addrs[0]), 40000),
			netip.AddrPortFrom(netip.MustParseAddr(addrs[1]), 80)
		k := portProbe{lb.Interface{}, lb.MAC{}, from, to, 0x0800, 1, 23, 20}
		if to.Addr().Is6() {
			k.etherType = 0x86dd
			k.icmpProtocol = 58
			k.offProtocol = 20
			k.ipLen = ipv6.HeaderLen
		}
		reply := func(from, to netip.AddrPort, flags byte) []byte {
			other := k
			other.from, other.to = from, to
			return other.segment(7, flags)
		}
		elsewhere := netip.AddrPortFrom(to.Addr().Next(), 80)
		for _, tt := range []struct {
			frame []byte
			want  PortState
		}{
			{reply(to, from, flagSYN|flagACK), PortOpen},
			{reply(to, from, flagRST|flagACK), PortRefuses},
			{reply(to, from, flagACK), ""},
			{reply(to, from, flagSYN), ""},
			{reply(elsewhere, from, flagSYN|flagACK), ""},
			{reply(netip.AddrPortFrom(to.Addr(), 81), from, flagRST), ""},
			{reply(to, netip.AddrPortFrom(from.Addr(), 40001), flagRST), ""},
			{reply(from, to, flagSYN|flagACK), ""},
		} {
			if got := k.parse(tt.frame); got != tt.want {
				t.Errorf("%x: %q, not %q", tt.frame, got, tt.want)
			}
			for n := range len(tt.frame) {
				if got := k.parse(tt.frame[:n]); got != "" {
					t.Errorf("%d bytes: %q", n, got)
				}
			}
		}
	}
}
