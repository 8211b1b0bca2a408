package layer2

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/ndp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// describe formats a frame we send like a packet capture.
func describe(frame []byte) string {
	var f ethernet.Frame
	if err := f.UnmarshalBinary(frame); err != nil {
		return err.Error()
	}
	mac := func(m []byte) string {
		return strings.NewReplacer(ourMAC.String(), "us", askerMAC.String(), "asker", "ff:ff:ff:ff:ff:ff", "all").Replace(lb.MACFrom(m).String())
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
		return head + fmt.Sprintf("echo %d %x %s", frame[offKind], nonceOf(frame), netip.AddrFrom16([16]byte(frame[offAddress:offTag])).Unmap())
	}
	from, _ := netip.AddrFromSlice(f.Payload[8:24])
	to, _ := netip.AddrFromSlice(f.Payload[24:40])
	m, err := ndp.ParseMessage(f.Payload[ipv6Len:])
	if err != nil {
		return err.Error()
	}
	if checksum(f.Payload[8:40], f.Payload[ipv6Len:]) != 0 {
		return "bad checksum"
	}
	if ns, ok := m.(*ndp.NeighborSolicitation); ok {
		return head + fmt.Sprintf("%s > %s hop limit %d NS %s options %d", from, to, f.Payload[7], ns.TargetAddress, len(ns.Options))
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
		answer, out := p.handle(proto, tt.frame)
		if out != answered {
			t.Errorf("%s: %v", tt.name, out)
			continue
		}
		if diff := cmp.Diff(tt.want, describe(answer)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestProbeFrames(t *testing.T) {
	for i, want := range []string{
		"us>all ARP 1 0.0.0.0 us > 192.0.2.100 00:00:00:00:00:00",
		"us>33:33:ff:00:01:00 :: > ff02::1:ff00:100 hop limit 255 NS 2001:db8::100 options 0",
	} {
		if got := describe(protocols()[i].probe(&eth0, []netip.Addr{v4, v6}[i])); got != want {
			t.Errorf("probe is %s\nwant     %s", got, want)
		}
	}
}

// A stand-in answers with the MAC of the owner whose speaker is down, in frames from its own MAC.
func TestAnswerInStead(t *testing.T) {
	p := testPort()
	p.r.Set(Desired{Announcements: []lb.Announcement{{Address: v4, MAC: otherMAC}, {Address: v6, MAC: otherMAC}}})
	for i, want := range []string{
		"us>asker ARP 2 192.0.2.100 02:53:00:00:00:03 > 192.0.2.2 asker",
		"us>asker fe80::1 > 2001:db8::2 hop limit 255 NA 2001:db8::100 R=false S=true O=true lla 02:53:00:00:00:03",
	} {
		answer, out := p.handle(p.r.protocols[i], [][]byte{arpRequest(v4, nil), ns(v6, nil)}[i])
		if out != answered || describe(answer) != want {
			t.Errorf("%v: %s\nwant %s", out, describe(answer), want)
		}
	}
}

func TestAnnouncementFrames(t *testing.T) {
	var got []string
	for i, addr := range []netip.Addr{v4, v6} {
		asker := machine{addr: []netip.Addr{asker4, asker6}[i], mac: askerMAC}
		for turn, to := range []*machine{nil, nil, nil, &asker} {
			got = append(got, describe(protocols()[i].announce(&eth0, addr, turn, to)))
		}
	}
	request, reply := "us>all ARP 1 192.0.2.100 us > 192.0.2.100 00:00:00:00:00:00", "us>all ARP 2 192.0.2.100 us > 192.0.2.100 us"
	na := "us>33:33:00:00:00:01 fe80::1 > ff02::1 hop limit 255 NA 2001:db8::100 R=false S=false O=true lla us"
	want := []string{
		request, reply, request, "us>asker ARP 2 192.0.2.100 us > 192.0.2.100 us",
		na, na, na, "us>asker fe80::1 > 2001:db8::2 hop limit 255 NA 2001:db8::100 R=false S=false O=true lla us",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
