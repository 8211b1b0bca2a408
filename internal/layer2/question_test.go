package layer2

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/ndp"
	"golang.org/x/net/ipv6"
)

func TestQuestionFrames(t *testing.T) {
	numbered := eth0
	numbered.Prefixes = []netip.Prefix{
		netip.MustParsePrefix("198.51.100.1/24"), netip.MustParsePrefix("192.0.2.100/32"),
		netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64"), ourLinkLocal,
	}
	for _, tt := range []struct {
		name string
		link lb.Interface
		addr netip.Addr
		want string
	}{
		{"with an address of the subnet, and not the one in question", numbered, v4,
			"us>asker ARP 1 192.0.2.1 us > 192.0.2.100 00:00:00:00:00:00"},
		{"without one", eth0, v4, "us>asker ARP 1 0.0.0.0 us > 192.0.2.100 00:00:00:00:00:00"},
		{"link-local", numbered, v6, "us>asker fe80::1 > 2001:db8::100 hop limit 255 NS 2001:db8::100 options 1"},
	} {
		frame := protocols()[familyIndex(lb.FamilyOf(tt.addr))].question(&tt.link, askerMAC, tt.addr)
		if diff := cmp.Diff(tt.want, describe(frame)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	if ndpProtocol().question(&lb.Interface{MAC: ourMAC}, askerMAC, v6) != nil {
		t.Error("a link without IPv6 address asks")
	}
}

// replyTo is an ARP reply to us only, from one MAC, that claims the address for another MAC.
func replyTo(to, from, has lb.MAC, addr netip.Addr) []byte {
	return arpRequest(asker4, func(p *arp.Packet, f *ethernet.Frame) {
		p.Operation, p.SenderIP, p.SenderHardwareAddr = arp.OperationReply, addr, has.HardwareAddr()
		f.Source, f.Destination = from.HardwareAddr(), to.HardwareAddr()
	})
}

// solicitedNA is the same of Neighbor Discovery; without a MAC it has no option, as a
// kernel's answer to a question by unicast may (RFC 4861 section 7.2.4).
func solicitedNA(t *testing.T, to, from, has lb.MAC, solicited bool) []byte {
	t.Helper()
	m := &ndp.NeighborAdvertisement{TargetAddress: v6, Solicited: solicited}
	if has != (lb.MAC{}) {
		m.Options = []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: has.HardwareAddr()}}
	}
	return icmpFrame(&lb.Interface{MAC: from}, to, asker6, netip.MustParseAddr("fe80::1"), m)
}

// TestWhatCountsAsAnswer: which frames pass the kernel's filter, and which of them count.
func TestWhatCountsAsAnswer(t *testing.T) {
	router := lb.MAC{0, 0, 0x5e, 0, 1, 1}
	for _, tt := range []struct {
		name          string
		asked         lb.MAC
		frame         []byte
		passes, count bool
	}{
		{"its reply", askerMAC, replyTo(ourMAC, askerMAC, askerMAC, v4), true, true},
		{"the reply of another machine", askerMAC, replyTo(ourMAC, otherMAC, otherMAC, v4), true, false},
		{"a reply for another address", askerMAC, replyTo(ourMAC, askerMAC, askerMAC, foreign4), true, false},
		{"a speaker's stand-in", askerMAC, replyTo(ourMAC, otherMAC, askerMAC, v4), true, false},
		{"a router with a virtual MAC", router, replyTo(ourMAC, otherMAC, router, v4), true, true},
		{"an announcement", askerMAC, claim4(askerMAC), false, false},
		{"a request", askerMAC, from(v4, asker4), false, false},
		{"its advertisement", askerMAC, solicitedNA(t, ourMAC, askerMAC, askerMAC, true), true, true},
		{"without option", askerMAC, solicitedNA(t, ourMAC, askerMAC, lb.MAC{}, true), true, true},
		{"of another machine", askerMAC, solicitedNA(t, ourMAC, otherMAC, lb.MAC{}, true), true, false},
		{"of a stand-in", askerMAC, solicitedNA(t, ourMAC, otherMAC, askerMAC, true), true, false},
		{"that was not solicited", askerMAC, solicitedNA(t, ourMAC, askerMAC, askerMAC, false), true, false},
		{"to all", askerMAC, claim6(askerMAC), false, false},
		{"a solicitation", askerMAC, ns(v6, nil), false, false},
	} {
		proto, addr := protocols()[0], v4
		if tt.frame[offEtherType] == 0x86 {
			proto, addr = protocols()[1], v6
		}
		a := &openQuestion{}
		in := &inquiry{
			r: newFakeLAN().responder(), speakers: speakers,
			questions: map[lb.Question]*openQuestion{{Link: "eth0", MAC: tt.asked, Address: addr}: a},
		}
		in.countAnswer(&tap{socket: socket{link: eth0, proto: proto}}, tt.frame)
		if counted := a.answers == 1; counted != tt.count {
			t.Errorf("%s counts: %v", tt.name, counted)
		}
		if passes := runs(t, proto.answers, tt.frame); passes != tt.passes {
			t.Errorf("%s passes: %v", tt.name, passes)
		}
	}
}

// aloneTo turns a station's question into one to us only.
func aloneTo(frame []byte) []byte {
	copy(frame[offDestination:], ourMAC[:])
	return frame
}

// A question to us only, even from a speaker and without an address, is answered as long
// as neighbours are answered. It does not count as a handover's question, which would
// make us announce again.
func TestAskedAlone(t *testing.T) {
	question := func() []byte { return aloneTo(arpProbeBy(askerMAC)) }
	runPlay(t, nil, func(p *play) {
		p.Set(Desired{Announcements: announcing(bothFamilies(probed)), Speakers: speakers})
		if got := p.put(question()); got != "" {
			t.Errorf("before it is ours: %s", got)
		}
		time.Sleep(6 * time.Second)
		sentFor(p.lan, 0)
		if got := p.put(question()); got == "" {
			t.Error("no answer for what is ours")
		}
		if got := sentFor(p.lan, time.Second); got != nil {
			t.Errorf("sent to all neighbours: %v", got)
		}
		p.Set(Desired{Yield: lb.SetOf(v4, v6), Speakers: speakers})
		synctest.Wait()
		sentFor(p.lan, 0)
		if got := p.put(question()); got == "" {
			t.Error("no answer while it is handed over")
		}
		sentFor(p.lan, lingerTime)
		if got := p.put(question()); got != "" {
			t.Errorf("after the handover: %s", got)
		}
	})
}

// describe formats a frame we send like a packet capture.
func describe(frame []byte) string {
	var f ethernet.Frame
	if err := f.UnmarshalBinary(frame); err != nil {
		return err.Error()
	}
	mac := func(m []byte) string {
		return strings.NewReplacer(ourMAC.String(), "us", askerMAC.String(), "asker", "ff:ff:ff:ff:ff:ff",
			"all").Replace(lb.MACFrom(m).String())
	}
	head := fmt.Sprintf("%s>%s ", mac(f.Source), mac(f.Destination))
	if f.EtherType == ethernet.EtherTypeARP {
		var p arp.Packet
		if err := p.UnmarshalBinary(f.Payload); err != nil {
			return err.Error()
		}
		return head + fmt.Sprintf("ARP %d %s %s > %s %s", p.Operation,
			p.SenderIP, mac(p.SenderHardwareAddr), p.TargetIP, mac(p.TargetHardwareAddr))
	}
	if f.EtherType == etherTypeEcho {
		return head + fmt.Sprintf("echo %d %x %s", frame[offKind], nonceOf(frame),
			netip.AddrFrom16([16]byte(frame[offAddress:offTag])).Unmap())
	}
	from, _ := netip.AddrFromSlice(f.Payload[8:24])
	to, _ := netip.AddrFromSlice(f.Payload[24:40])
	m, err := ndp.ParseMessage(f.Payload[ipv6.HeaderLen:])
	if err != nil {
		return err.Error()
	}
	if checksum(f.Payload[8:40], f.Payload[ipv6.HeaderLen:]) != 0 {
		return "bad checksum"
	}
	if ns, ok := m.(*ndp.NeighborSolicitation); ok {
		return head + fmt.Sprintf("%s > %s hop limit %d NS %s options %d", from, to, f.Payload[7], ns.TargetAddress,
			len(ns.Options))
	}
	na := m.(*ndp.NeighborAdvertisement)
	return head + fmt.Sprintf("%s > %s hop limit %d NA %s R=%t S=%t O=%t lla %s", from, to, f.Payload[7],
		na.TargetAddress, na.Router, na.Solicited, na.Override, mac(na.Options[0].(*ndp.LinkLayerAddress).Addr))
}

// Trap: without the override flag a neighbour keeps the MAC that it knows (MetalLB).
func TestAnswer(t *testing.T) {
	noLinkLocal := eth0
	noLinkLocal.Prefixes = nil
	proxied := func(p *arp.Packet, _ *ethernet.Frame) { p.SenderHardwareAddr = otherMAC.HardwareAddr() }
	for _, tt := range []struct {
		name  string
		link  lb.Interface
		frame []byte
		want  string
	}{
		{"ARP", eth0, arpRequest(v4, nil), "us>asker ARP 2 192.0.2.100 us > 192.0.2.2 asker"},
		{"ARP probe", eth0, arpRequest(v4, func(p *arp.Packet, _ *ethernet.Frame) { p.SenderIP = netip.IPv4Unspecified() }),
			"us>asker ARP 2 192.0.2.100 us > 0.0.0.0 asker"},
		{"ARP, asked for another station", eth0, arpRequest(v4, proxied),
			"us>02:53:00:00:00:03 ARP 2 192.0.2.100 us > 192.0.2.2 02:53:00:00:00:03"},
		{"NS", eth0, ns(v6, nil),
			"us>asker fe80::1 > 2001:db8::2 hop limit 255 NA 2001:db8::100 R=false S=true O=true lla us"},
		{"NS without source option", eth0, ns(v6, func(s *solicitation) { s.message.Options = nil }),
			"us>asker fe80::1 > 2001:db8::2 hop limit 255 NA 2001:db8::100 R=false S=true O=true lla us"},
		{"duplicate address detection", eth0, ns(v6, func(s *solicitation) {
			s.source, s.message.Options = netip.IPv6Unspecified(), nil
		}), "us>33:33:00:00:00:01 fe80::1 > ff02::1 hop limit 255 NA 2001:db8::100 R=false S=false O=true lla us"},
		{"NS, link without link-local address", noLinkLocal, ns(v6, nil),
			"us>asker 2001:db8::100 > 2001:db8::2 hop limit 255 NA 2001:db8::100 R=false S=true O=true lla us"},
	} {
		p := testPort()
		p.setLink(tt.link)
		proto := p.r.protocols[0]
		if strings.Contains(tt.want, " NA ") {
			proto = p.r.protocols[1]
		}
		answer, out := p.answer(proto, tt.frame)
		if out != answered {
			t.Errorf("%s: %v", tt.name, out)
			continue
		}
		if diff := cmp.Diff(tt.want, describe(answer)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// A stand-in answers with the MAC of the owner whose speaker is down, in frames from its own MAC.
func TestAnswerInStead(t *testing.T) {
	p := testPort()
	p.r.Set(Desired{Announcements: announcing([]lb.Announcement{{Address: v4, MAC: otherMAC},
		{Address: v6, MAC: otherMAC}})})
	for i, want := range []string{
		"us>asker ARP 2 192.0.2.100 02:53:00:00:00:03 > 192.0.2.2 asker",
		"us>asker fe80::1 > 2001:db8::2 hop limit 255 NA 2001:db8::100 R=false S=true O=true lla 02:53:00:00:00:03",
	} {
		answer, out := p.answer(p.r.protocols[i], [][]byte{arpRequest(v4, nil), ns(v6, nil)}[i])
		if out != answered || describe(answer) != want {
			t.Errorf("%v: %s\nwant %s", out, describe(answer), want)
		}
	}
}

func TestFramesToAll(t *testing.T) {
	var got []string
	for i, addr := range []netip.Addr{v4, v6} {
		got = append(got, describe(protocols()[i].probe(&eth0, addr)),
			describe(protocols()[i].question(&eth0, lb.MAC{}, addr)))
		asker := machine{addr: []netip.Addr{asker4, asker6}[i], mac: askerMAC}
		for turn, to := range []*machine{nil, nil, nil, &asker} {
			got = append(got, describe(protocols()[i].announce(&eth0, addr, turn, to)))
		}
	}
	request, reply := "us>all ARP 1 192.0.2.100 us > 192.0.2.100 00:00:00:00:00:00",
		"us>all ARP 2 192.0.2.100 us > 192.0.2.100 us"
	na := "us>33:33:00:00:00:01 fe80::1 > ff02::1 hop limit 255 NA 2001:db8::100 R=false S=false O=true lla us"
	want := []string{
		"us>all ARP 1 0.0.0.0 us > 192.0.2.100 00:00:00:00:00:00", "us>all ARP 1 0.0.0.0 us > 192.0.2.100 00:00:00:00:00:00",
		request, reply, request, "us>asker ARP 2 192.0.2.100 us > 192.0.2.100 us",
		"us>33:33:ff:00:01:00 :: > ff02::1:ff00:100 hop limit 255 NS 2001:db8::100 options 0",
		"us>33:33:ff:00:01:00 fe80::1 > 2001:db8::100 hop limit 255 NS 2001:db8::100 options 1",
		na, na, na, "us>asker fe80::1 > 2001:db8::2 hop limit 255 NA 2001:db8::100 R=false S=false O=true lla us",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
