package layer2

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// within is how long tests wait on a busy machine.
const within = 30 * time.Second

// TestResolve: a host's kernel resolves exactly the addresses of the last Set, whatever becomes of our link.
func TestResolve(t *testing.T) { nstest.Run(t, testResolve) }

func testResolve(t *testing.T) {
	n := newRealNetwork(t)
	r := realResponder(t)
	expect := func(what string, addr netip.Addr, want string) {
		t.Helper()
		var got string
		nstest.Until(t, within, what+" of "+addr.String(), func() bool { got = n.ask(t, addr); return got == want })
	}
	both := func(what, want string) {
		t.Helper()
		expect(what, v4, want)
		expect(what, v6, want)
	}
	both("silence before Set", "")
	r.Set(Desired{Announcements: announcing(ourAnnouncements)})
	both("answer", n.mac())

	r.Set(Desired{Announcements: announcing(ourAnnouncements[1:])})
	if got := n.ask(t, v4); got != "" {
		t.Errorf("%s answers for an address that was removed", got)
	}
	expect("answer for what stayed", v6, n.mac())

	r.Set(Desired{Announcements: announcing([]lb.Announcement{{Address: v4, Links: []string{"eth9"}},
		{Address: v6, Links: []string{"eth0"}}})})
	expect("silence on a link not named", v4, "")
	expect("answer on the link named", v6, n.mac())

	r.Set(Desired{Announcements: announcing(ourAnnouncements)})
	n.setMAC(otherMAC)
	both("answer with the new MAC", otherMAC.String())
	n.bounce()
	both("answer after down and up", n.mac())
	n.remake()
	both("answer of the recreated link", n.mac())
	r.Set(Desired{})
	both("silence after all was removed", "")
}

// realNetwork is a veth pair between our eth0 and a host whose kernel asks.
type realNetwork struct {
	t         *testing.T
	node, far *nstest.NS
}

func newRealNetwork(t *testing.T) *realNetwork {
	n := &realNetwork{t: t, node: nstest.Self(t), far: nstest.New(t)}
	n.connect()
	return n
}

func (n *realNetwork) connect() {
	nstest.Veth(n.t, n.node, "eth0", n.far, "eth0")
	n.node.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64", "fe80::1/64")
	n.far.AddAddress("eth0", asker4.String()+"/24", asker6.String()+"/64", "fe80::2/64")
	// The kernel gives up after three questions; 1 s apart by default.
	n.neigh("retrans_time_ms", "100")
}

// neigh sets how the kernel of the far host asks for its neighbours and keeps them, in both families.
func (n *realNetwork) neigh(setting, value string) {
	for _, family := range []string{"ipv4", "ipv6"} {
		n.far.Sysctl(family+"/neigh/eth0/"+setting, value)
	}
}

// forget deletes what the kernel of a host knows of the machine that has an address.
func forget(host *nstest.NS, addr netip.Addr) {
	host.Output("ip", "neigh", "flush", "to", addr.String(), "dev", "eth0")
}

// ask resolves an address on the host, and returns the MAC, empty without an answer.
func (n *realNetwork) ask(t *testing.T, addr netip.Addr) string {
	t.Helper()
	forget(n.far, addr)
	n.far.Send(addr)
	mac := ""
	nstest.Until(t, within, "end of the far kernel's asking", func() bool {
		state, hw := n.far.Neighbor("eth0", addr)
		if state&nstest.Valid != 0 {
			mac = hw.String()
		}
		return state != netlink.NUD_INCOMPLETE
	})
	return mac
}

func (n *realNetwork) setMAC(mac lb.MAC) {
	n.node.Output("ip", "link", "set", "eth0", "address", mac.String())
}
func (n *realNetwork) mac() string { return n.node.MAC("eth0").String() }

func (n *realNetwork) bounce() {
	n.node.SetDown("eth0")
	n.node.SetUp("eth0")
	n.node.AddAddress("eth0", "2001:db8::1/64", "fe80::1/64")
}

func (n *realNetwork) remake() {
	n.node.Delete("eth0")
	n.connect()
}

// realResponder runs a Responder on the node's links as a Monitor sees them.
func realResponder(t *testing.T) *Responder {
	t.Helper()
	return timedResponder(t, Timers{})
}

func timedResponder(t *testing.T, timers Timers) *Responder {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	var r *Responder
	monitor := link.New(log, func() { r.Kick() })
	r = quietResponder(Config{Links: monitor.Links, Timers: timers}, realSystem())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- monitor.Run(ctx) }()
	stop := run(t, r)
	t.Cleanup(func() {
		stop()
		cancel()
		<-done
	})
	return r
}

// In every state of a neighbour's entry the announcement alone moves it to the new
// owner, with IPv6 as with IPv4. Only a failed entry (FAILED) ignores advertisements
// (RFC 4861 section 7.2.5: there is no entry); that neighbour asks with its next packet.
func TestTakeoverInAnyState(t *testing.T) {
	besideHost(t, func(t *testing.T, n *realNetwork) {
		// Its own questions must not resolve the address.
		n.neigh("retrans_time_ms", "600000")
		r := realResponder(t)
		states := []int{netlink.NUD_INCOMPLETE, netlink.NUD_REACHABLE, netlink.NUD_STALE, netlink.NUD_DELAY,
			netlink.NUD_PROBE}
		// before makes an entry with another MAC or none; earlier announcements may still arrive.
		before := func(state int, addr netip.Addr) bool {
			forget(n.far, addr)
			if state == netlink.NUD_INCOMPLETE {
				n.far.Send(addr) // no answer
			} else {
				must(t, n.far.Netlink().NeighSet(&netlink.Neigh{
					LinkIndex: n.far.Link("eth0").Attrs().Index, IP: addr.AsSlice(), HardwareAddr: askerMAC.HardwareAddr(),
					State: state,
				}))
			}
			_, mac := n.far.Neighbor("eth0", addr)
			return mac.String() != n.mac()
		}
		for _, state := range states {
			for _, addr := range []netip.Addr{v4, v6} {
				nstest.Until(t, within, "an entry of "+addr.String(), func() bool { return before(state, addr) })
			}
			r.Set(Desired{Announcements: announcing(ourAnnouncements)})
			for _, addr := range []netip.Addr{v4, v6} {
				nstest.Until(t, within, fmt.Sprintf("the new owner's MAC of %s in state %#x", addr, state), func() bool {
					entryState, mac := n.far.Neighbor("eth0", addr)
					return entryState&nstest.Valid != 0 && mac.String() == n.mac()
				})
			}
			r.Set(Desired{})
		}
	})
}

// A neighbour with a stale entry probes the announced address itself by unicast
// (RFC 4861 section 7.3.3), and gets an answer.
//
// Trap: unicast probes get no answer, since no interface has their destination
// address (MetalLB #2920, #2685).
func TestReachabilityProbe(t *testing.T) {
	besideHost(t, func(t *testing.T, n *realNetwork) {
		n.neigh("base_reachable_time_ms", "100")
		n.neigh("delay_first_probe_time", "0")
		// A multicast probe after the unicast ones must not resolve the address.
		n.neigh("mcast_resolicit", "0")
		r := realResponder(t)
		r.Set(Desired{Announcements: announcing(ourAnnouncements)})
		for _, addr := range []netip.Addr{v4, v6} {
			nstest.Until(t, within, "answer", func() bool { return n.ask(t, addr) != "" })
			for range 3 {
				state := func() int { s, _ := n.far.Neighbor("eth0", addr); return s }
				nstest.Until(t, within, addr.String()+" stale", func() bool { return state() == netlink.NUD_STALE })
				nstest.Until(t, within, addr.String()+" reachable again", func() bool {
					if state() == netlink.NUD_STALE { // even if a repeated announcement came between
						n.far.Send(addr)
					}
					return state() == netlink.NUD_REACHABLE
				})
			}
		}
	})
}

// A host that tries to configure one of our addresses detects the duplicate.
//
// Trap: duplicate address detection, which has no source option, gets no answer (MetalLB).
func TestDuplicateAddressDetection(t *testing.T) {
	besideHost(t, func(t *testing.T, n *realNetwork) {
		r := timedResponder(t, Timers{AnnounceTimes: []time.Duration{0, 100 * time.Millisecond}})
		r.Set(Desired{Announcements: announcing(ourAnnouncements)})
		nstest.Until(t, within, "answer", func() bool { return n.ask(t, v4) != "" && n.ask(t, v6) != "" })
		// An announcement would reveal the duplicate, too.
		nstest.Until(t, within, "all announcements are made", func() bool {
			return r.counters.announcements[1][sent].Load() >= 2
		})

		eth := n.far.Link("eth0")
		must(t, n.far.Netlink().AddrAdd(eth, &netlink.Addr{
			IPNet: &net.IPNet{IP: v6.AsSlice(), Mask: net.CIDRMask(64, 128)},
		}))
		nstest.Until(t, within, "IPv6 duplicate found", func() bool {
			addrs, err := n.far.Netlink().AddrList(eth, netlink.FAMILY_V6)
			must(t, err)
			for _, a := range addrs {
				if got, _ := netip.AddrFromSlice(a.IP); got == v6 {
					return a.Flags&unix.IFA_F_DADFAILED != 0
				}
			}
			return false
		})

		asker := eth.Attrs().HardwareAddr
		owner := make(chan string, 1)
		watch(t, n.far, arpProtocol(), func(frame []byte) {
			// The far kernel's own requests have a sender address, which is the reply's target address.
			var p arp.Packet
			if p.UnmarshalBinary(frame[ethernetLen:]) == nil && p.Operation == arp.OperationReply && p.SenderIP == v4 &&
				p.TargetIP.IsUnspecified() {
				select {
				case owner <- p.SenderHardwareAddr.String():
				default:
				}
			}
		})
		// RFC 5227 section 2.1.1: a probe has no sender address.
		probe := arpRequest(v4, func(p *arp.Packet, f *ethernet.Frame) {
			p.SenderIP, p.SenderHardwareAddr, f.Source = netip.IPv4Unspecified(), asker, asker
		})
		write(t, farWire(t, n.far, arpProtocol()), probe)
		select {
		case got := <-owner:
			if got != n.mac() {
				t.Errorf("the ARP probe is answered with %s, want %s", got, n.mac())
			}
		case <-time.After(within):
			t.Error("the ARP probe is not answered")
		}
	})
}

// A question from a VLAN without a link here is not answered on the link below; one with
// only a priority tag is (IEEE 802.1Q: VLAN 0 is no VLAN).
func TestVLANIsNotOurs(t *testing.T) {
	besideHost(t, func(t *testing.T, n *realNetwork) {
		r := realResponder(t)
		r.Set(Desired{Announcements: announcing(ourAnnouncements)})
		nstest.Until(t, within, "answer", func() bool { return n.ask(t, v4) != "" && n.ask(t, v6) != "" })

		for i, proto := range r.protocols[:familyCount] {
			w := farWire(t, n.far, proto)
			count := func(o frameResult) uint64 { return r.counters.requests[i][o].Load() }
			before := count(answered)
			ours := []netip.Addr{v4, v6}[i]
			write(t, w, tagged4or6(ours, &ethernet.VLAN{ID: 10}))
			write(t, w, claims()[i])
			nstest.Until(t, within, "the frame after it", func() bool { return count(claimed) > 0 })
			if got := count(answered); got != before {
				t.Errorf("%v is answered on VLAN 10", ours)
			}
			write(t, w, tagged4or6(ours, &ethernet.VLAN{Priority: 5}))
			nstest.Until(t, within, "answer to a frame with a priority", func() bool { return count(answered) == before+1 })
		}
	})
}

// A socket gets what its own link received, and nothing of what the VLANs on it received. This kernel has no VLANs: a
// socket that is bound to no link gets the frames of all, each with the index of the link that received it.
func TestReceivedBy(t *testing.T) {
	besideHost(t, func(t *testing.T, n *realNetwork) {
		nstest.Veth(t, n.node, "eth1", n.far, "eth1")
		for i, proto := range protocols() {
			ours := []netip.Addr{v4, v6}[i]
			index := func(ns *nstest.NS, name string) int { return ns.Link(name).Attrs().Index }
			e, err := openTap(lb.Interface{}, proto, toUs())
			must(t, err)
			defer e.close()
			// The program is for eth0, and the socket is bound to no link.
			e.link.Index = index(n.node, "eth0")
			must(t, e.SetFilter(proto.filter(coversOf(slices.Values([]netip.Addr{ours}))[i])))
			for sequence, from := range []string{"eth1", "eth0"} {
				w := wireOn(t, n.far, lb.Interface{Index: index(n.far, from), Name: from}, proto)
				frame := tagged4or6(ours, nil)
				frame[offSource+5] = byte(sequence)
				write(t, w, frame)
			}
			var got []byte
			nstest.Until(t, within, "the frame that eth0 received", func() bool {
				e.receive(func(frame []byte) { got = append(got, frame[offSource+5]) })
				return slices.Contains(got, 1)
			})
			if len(got) != 1 {
				t.Errorf("%s: frames of the links %v pass the program for link 1", proto.name, got)
			}
		}
	})
}

// claims are frames of each family by which the asker claims our address.
func claims() [familyCount][]byte {
	return [familyCount][]byte{
		arpRequest(v4, func(p *arp.Packet, _ *ethernet.Frame) { p.SenderIP = v4 }),
		ns(v6, func(s *solicitation) { s.source = v6 }),
	}
}

func tagged4or6(target netip.Addr, vlan *ethernet.VLAN) []byte {
	if target.Is4() {
		return arpRequest(target, func(_ *arp.Packet, f *ethernet.Frame) { f.VLAN = vlan })
	}
	return ns(target, func(s *solicitation) { s.eth.VLAN = vlan })
}
