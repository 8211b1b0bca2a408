package layer2

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/ndp"
	"golang.org/x/net/bpf"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// Common to all tests: our link, an asker, and an address of each family.
var (
	ourMAC   = lb.MAC{0x02, 0x53, 0, 0, 0, 0x01}
	askerMAC = lb.MAC{0x02, 0x53, 0, 0, 0, 0x02}
	otherMAC = lb.MAC{0x02, 0x53, 0, 0, 0, 0x03}

	v4, v6         = netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("2001:db8::100")
	foreign4       = netip.MustParseAddr("192.0.2.77")
	foreign6       = netip.MustParseAddr("2001:db8::77")
	asker4, asker6 = netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")
	ourLinkLocal   = netip.MustParsePrefix("fe80::1/64")
	eth0           = lb.Interface{Index: 2, Name: "eth0", MAC: ourMAC, Up: true, Prefixes: []netip.Prefix{ourLinkLocal}}
	eth1           = lb.Interface{
		Index: 3, Name: "eth1", MAC: lb.MAC{0x02, 0x53, 0, 0, 0, 0x05}, Up: true, Prefixes: eth0.Prefixes,
	}
	ourAnnouncements = []lb.Announcement{{Address: v4}, {Address: v6}}
)

// protocols returns the protocols of both families.
func protocols() [familyCount]protocol { return [familyCount]protocol{arpProtocol(), ndpProtocol()} }

// arpRequest is a broadcast request by the asker, changed as the test says.
func arpRequest(target netip.Addr, change func(*arp.Packet, *ethernet.Frame)) []byte {
	p, err := arp.NewPacket(arp.OperationRequest, askerMAC.HardwareAddr(), asker4, make([]byte, 6), target)
	if err != nil {
		panic(err)
	}
	f := &ethernet.Frame{
		Destination: ethernet.Broadcast, Source: askerMAC.HardwareAddr(), EtherType: ethernet.EtherTypeARP,
	}
	if change != nil {
		change(p, f)
	}
	if f.Payload, err = p.MarshalBinary(); err != nil {
		panic(err)
	}
	b, err := f.MarshalBinary()
	if err != nil {
		panic(err)
	}
	return b
}

// solicitation is a Neighbor Solicitation by the asker, changed as the test says.
type solicitation struct {
	eth              ethernet.Frame
	source, to       netip.Addr
	message          ndp.NeighborSolicitation
	hopLimit, header byte
	// icmp changes the message after its checksum was computed, and corrects the checksum if fix is set.
	icmp func([]byte) []byte
	fix  bool
}

func ns(target netip.Addr, change func(*solicitation)) []byte {
	group, err := ndp.SolicitedNodeMulticast(target)
	if err != nil {
		panic(err)
	}
	s := &solicitation{
		source: asker6, to: group, hopLimit: hopLimit, header: unix.IPPROTO_ICMPV6,
		message: ndp.NeighborSolicitation{TargetAddress: target, Options: []ndp.Option{
			&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: askerMAC.HardwareAddr()},
		}},
		eth: ethernet.Frame{
			Destination: groupMAC(group).HardwareAddr(), Source: askerMAC.HardwareAddr(), EtherType: ethernet.EtherTypeIPv6,
		},
	}
	if change != nil {
		change(s)
	}
	return s.marshal()
}

// na is an unsolicited Neighbor Advertisement by the asker that target is at mac, changed as the test says.
func na(target netip.Addr, mac lb.MAC, change func(*ndp.NeighborAdvertisement)) []byte {
	m := &ndp.NeighborAdvertisement{TargetAddress: target, Override: true, Options: []ndp.Option{
		&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: mac.HardwareAddr()},
	}}
	if change != nil {
		change(m)
	}
	all := netip.IPv6LinkLocalAllNodes()
	asker := lb.Interface{MAC: askerMAC}
	return icmpFrame(&asker, groupMAC(all), asker6, all, m)
}

// icmpFrame is a message in an IPv6 packet with the hop limit of Neighbor Discovery, made by a library of others.
func icmpFrame(l *lb.Interface, dst lb.MAC, from, to netip.Addr, m ndp.Message) []byte {
	icmp, err := ndp.MarshalMessageChecksum(m, from, to)
	if err != nil {
		panic(err)
	}
	packet := slices.Concat([]byte{6 << 4, 0, 0, 0, 0, byte(len(icmp)), unix.IPPROTO_ICMPV6, hopLimit}, from.AsSlice(),
		to.AsSlice(), icmp)
	f := ethernet.Frame{
		Destination: dst.HardwareAddr(), Source: l.MAC.HardwareAddr(), EtherType: ethernet.EtherTypeIPv6, Payload: packet,
	}
	frame, err := f.MarshalBinary()
	if err != nil {
		panic(err)
	}
	return frame
}

func (s *solicitation) marshal() []byte {
	icmp, err := ndp.MarshalMessageChecksum(&s.message, s.source, s.to)
	if err != nil {
		panic(err)
	}
	addrs := append(s.source.AsSlice(), s.to.AsSlice()...)
	if s.icmp != nil {
		icmp = s.icmp(icmp)
		if s.fix {
			icmp[2], icmp[3] = 0, 0
			binary.BigEndian.PutUint16(icmp[2:], checksum(addrs, icmp))
		}
	}
	b := make([]byte, 8, ipv6.HeaderLen+len(icmp))
	b[0], b[6], b[7] = 6<<4, s.header, s.hopLimit
	binary.BigEndian.PutUint16(b[4:], uint16(len(icmp)))
	b = append(b, addrs...)
	s.eth.Payload = append(b, icmp...)
	frame, err := s.eth.MarshalBinary()
	if err != nil {
		panic(err)
	}
	return frame
}

// testPort returns a port on eth0 without connections, of a Responder that announces both addresses.
func testPort() *linkPort {
	r := newFakeLAN().responder()
	r.table.Store(newTable(Desired{Announcements: announcing(ourAnnouncements)}, Desired{}, &addressTable{}, false,
		r.system.clock()))
	r.echo = keyedBy(1)
	r.protocols[echoIndex] = r.echo.protocol()
	p := &linkPort{r: r}
	p.setLink(eth0)
	return p
}

type frameTest struct {
	name  string
	frame []byte
	want  frameResult
}

func arpTests() []frameTest {
	request := func(change func(*arp.Packet, *ethernet.Frame)) []byte { return arpRequest(v4, change) }
	whole := request(nil)
	raw := func(change func([]byte)) []byte {
		b := request(nil)
		change(b)
		return b
	}
	return []frameTest{
		{"request", whole, answered},
		{"without padding", whole[:ethernetLen+arpLen], answered},
		{"by unicast", request(func(_ *arp.Packet, f *ethernet.Frame) { f.Destination = ourMAC.HardwareAddr() }), answered},
		{"probe", request(func(p *arp.Packet, _ *ethernet.Frame) { p.SenderIP = netip.IPv4Unspecified() }), answered},
		{"other target", arpRequest(foreign4, nil), notOurs},
		{"target 0.0.0.0", arpRequest(netip.IPv4Unspecified(), nil), notOurs},
		{"reply of another", request(func(p *arp.Packet, _ *ethernet.Frame) {
			p.Operation = arp.OperationReply
		}), notRequest},
		{"RARP", request(func(p *arp.Packet, _ *ethernet.Frame) { p.Operation = 3 }), notRequest},
		{"foreign gratuitous request", request(func(p *arp.Packet, _ *ethernet.Frame) { p.SenderIP = v4 }), claimed},
		{"foreign gratuitous reply", request(func(p *arp.Packet, _ *ethernet.Frame) {
			p.SenderIP, p.Operation = v4, arp.OperationReply
		}), claimed},
		{"own frame", request(func(_ *arp.Packet, f *ethernet.Frame) { f.Source = ourMAC.HardwareAddr() }), ownFrame},
		{"to another station", request(func(_ *arp.Packet, f *ethernet.Frame) {
			f.Destination = otherMAC.HardwareAddr()
		}), notToUs},
		{"VLAN", request(func(_ *arp.Packet, f *ethernet.Frame) { f.VLAN = &ethernet.VLAN{ID: 10} }), tagged},
		{"priority tag", request(func(_ *arp.Packet, f *ethernet.Frame) { f.VLAN = &ethernet.VLAN{Priority: 5} }), tagged},
		{"other protocol", request(func(_ *arp.Packet, f *ethernet.Frame) {
			f.EtherType = ethernet.EtherTypeIPv4
		}), notRequest},
		{"nothing", nil, badLength},
		{"half a header", whole[:10], badLength},
		{"header only", whole[:ethernetLen], badLength},
		{"cut", whole[:ethernetLen+arpLen-1], badLength},
		{"hardware type", raw(func(b []byte) { b[ethernetLen+1] = 6 }), badFormat},
		{"protocol type", raw(func(b []byte) { b[ethernetLen+3] = 1 }), badFormat},
		{"hardware length", raw(func(b []byte) { b[ethernetLen+4] = 255 }), badFormat},
		{"protocol length", raw(func(b []byte) { b[ethernetLen+5] = 16 }), badFormat},
		{"sender without MAC", request(func(p *arp.Packet, _ *ethernet.Frame) {
			p.SenderHardwareAddr = make([]byte, 6)
		}), badSender},
		{"sender is broadcast", request(func(p *arp.Packet, _ *ethernet.Frame) {
			p.SenderHardwareAddr = ethernet.Broadcast
		}), badSender},
		{"sender is a group", request(func(p *arp.Packet, _ *ethernet.Frame) {
			p.SenderIP = netip.MustParseAddr("224.0.0.1")
		}), badSender},
	}
}

func ndpTests() []frameTest {
	request := func(change func(*solicitation)) []byte { return ns(v6, change) }
	options := func(b ...byte) []byte {
		return request(func(s *solicitation) {
			s.fix, s.icmp = true, func(icmp []byte) []byte { return append(icmp[:discoveryLen], b...) }
		})
	}
	dad := func(s *solicitation) { s.source, s.message.Options = netip.IPv6Unspecified(), nil }
	whole := request(nil)
	return []frameTest{
		{"request", whole, answered},
		{"by unicast to the address", request(func(s *solicitation) {
			s.to, s.eth.Destination = v6, ourMAC.HardwareAddr()
		}), answered},
		{"by unicast, no source option", request(func(s *solicitation) {
			s.to, s.eth.Destination, s.message.Options = v6, ourMAC.HardwareAddr(), nil
		}), answered},
		{"duplicate address detection", request(dad), answered},
		{"with a nonce (RFC 7527)", options(14, 1, 1, 2, 3, 4, 5, 6), answered},
		{"padded", append(request(nil), 0, 0, 0, 0), answered},
		{"other target", ns(foreign6, nil), notOurs},
		{"target ::ffff:192.0.2.100", request(func(s *solicitation) {
			mapped := netip.AddrFrom16(v4.As16())
			s.fix, s.icmp = true, func(b []byte) []byte { copy(b[8:], mapped.AsSlice()); return b }
		}), notOurs},
		{"other message", request(func(s *solicitation) {
			s.fix, s.icmp = true, func(b []byte) []byte { b[0] = 128; return b }
		}), notRequest},
		{"advertisement of another", na(v6, askerMAC, nil), claimed},
		{"advertisement without MAC", na(v6, askerMAC, func(m *ndp.NeighborAdvertisement) { m.Options = nil }), claimed},
		{"advertisement of a foreign address", na(foreign6, askerMAC, nil), notRequest},
		{"solicited advertisement to all", na(v6, askerMAC, func(m *ndp.NeighborAdvertisement) {
			m.Solicited = true
		}), badFormat},
		{"advertisement of a group's MAC", na(v6, groupMAC(v6), nil), badOption},
		{"UDP", request(func(s *solicitation) { s.header = 17 }), notRequest},
		{"asked by the address itself", request(func(s *solicitation) { s.source = v6 }), claimed},
		{"own frame", request(func(s *solicitation) { s.eth.Source = ourMAC.HardwareAddr() }), ownFrame},
		{"to another station", request(func(s *solicitation) { s.eth.Destination = otherMAC.HardwareAddr() }), notToUs},
		{"VLAN", request(func(s *solicitation) { s.eth.VLAN = &ethernet.VLAN{ID: 10} }), tagged},
		{"forwarded by a router", request(func(s *solicitation) { s.hopLimit = 254 }), badHopLimit},
		{"hop limit 0", request(func(s *solicitation) { s.hopLimit = 0 }), badHopLimit},
		{"checksum", request(func(s *solicitation) { s.icmp = func(b []byte) []byte { b[2]++; return b } }), badChecksum},
		{"flipped bit", request(func(s *solicitation) {
			s.icmp = func(b []byte) []byte { b[20] ^= 1; return b }
		}), badChecksum},
		{"code", request(func(s *solicitation) {
			s.fix, s.icmp = true, func(b []byte) []byte { b[1] = 1; return b }
		}), badFormat},
		{"IP version", func() []byte { b := request(nil); b[ethernetLen] = 0x45; return b }(), badFormat},
		{"nothing", nil, badLength},
		{"half a header", whole[:13], badLength},
		{"half an IPv6 header", whole[:ethernetLen+39], badLength},
		{"no payload", whole[:ethernetLen+ipv6.HeaderLen], badLength},
		{"cut", whole[:len(whole)-1], badLength},
		{"payload length 0", func() []byte { b := request(nil); b[18], b[19] = 0, 0; return b }(), badLength},
		{"payload length 65535", func() []byte { b := request(nil); b[18], b[19] = 255, 255; return b }(), badLength},
		{"short message", request(func(s *solicitation) {
			s.fix, s.icmp = true, func(b []byte) []byte { return b[:discoveryLen-1] }
		}), badLength},
		{"option of length 0", options(1, 0, 2, 0x53, 0, 0, 0, 2), badOption},
		{"option beyond the end", options(1, 2, 2, 0x53, 0, 0, 0, 2), badOption},
		{"half an option", options(1, 1, 2, 0x53), badOption},
		{"source option of two units", options(1, 2, 2, 0x53, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0), badOption},
		{"source option is a group", options(1, 1, 0x33, 0x33, 0, 0, 0, 1), badOption},
		{"target is a group", request(func(s *solicitation) {
			s.fix, s.icmp = true, func(b []byte) []byte { b[8] = 0xff; return b }
		}), badTarget},
		{"sender is a group", request(func(s *solicitation) { s.source = netip.IPv6LinkLocalAllNodes() }), badSender},
		{"frame from a group", request(func(s *solicitation) { s.eth.Source = ethernet.Broadcast }), badSender},
		{"detection with source option", request(func(s *solicitation) { s.source = netip.IPv6Unspecified() }), badOption},
		{"detection by unicast", request(func(s *solicitation) {
			dad(s)
			s.to, s.eth.Destination = v6, ourMAC.HardwareAddr()
		}), badSender},
	}
}

// Trap: questions without a source option, such as unicast probes and duplicate address
// detection, get no answer (MetalLB #2920).
func TestOutcome(t *testing.T) {
	p := testPort()
	for i, tests := range [][]frameTest{arpTests(), ndpTests(), echoTests()} {
		proto := p.r.protocols[i]
		for _, tt := range tests {
			answer, got := p.answer(proto, tt.frame)
			if got != tt.want {
				t.Errorf("%s, %s: %v, want %v", proto.name, tt.name, got, tt.want)
			}
			if (answer != nil) != (got == answered) {
				t.Errorf("%s, %s: %v with an answer of %d octets", proto.name, tt.name, got, len(answer))
			}
		}
	}
}

func FuzzParseARP(f *testing.F)  { fuzz(f, arpTests(), 0) }
func FuzzParseNS(f *testing.F)   { fuzz(f, ndpTests(), 1) }
func FuzzParseEcho(f *testing.F) { fuzz(f, echoTests(), echoIndex) }

// fuzz checks that no frame causes a panic, that the answer goes to one station or to
// all, and that the answer is not itself a question.
func fuzz(f *testing.F, seeds []frameTest, i int) {
	p := testPort()
	for _, s := range seeds {
		f.Add(s.frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		answer, out := p.answer(p.r.protocols[i], frame)
		if out >= frameResults || out == sendFailed {
			t.Fatalf("outcome %d", out)
		}
		if answer == nil {
			return
		}
		if _, again := p.answer(p.r.protocols[i], answer); again != ownFrame {
			t.Errorf("our answer is taken for %v", again)
		}
	})
}

// filtered runs a protocol's program on frames, without its first instructions, which
// ask the kernel for the packet type.
func filtered(t *testing.T, proto protocol, addrs []netip.Addr) func(frame []byte) bool {
	t.Helper()
	program := proto.filter(coversOf(slices.Values(addrs))[proto.index])
	if raw, err := bpf.Assemble(program); err != nil || len(raw) > 1000 {
		t.Fatalf("%d instructions: %v", len(raw), err)
	}
	return func(frame []byte) bool { return runs(t, program, frame) }
}

// runs reports whether a program passes a frame.
func runs(t *testing.T, program []bpf.Instruction, frame []byte) bool {
	t.Helper()
	const prologue = 4
	vm, err := bpf.NewVM(program[prologue:])
	must(t, err)
	n, err := vm.Run(frame)
	must(t, err)
	return n > 0
}

func from(sender, target netip.Addr) []byte {
	return arpRequest(target, func(p *arp.Packet, _ *ethernet.Frame) { p.SenderIP = sender })
}

func TestARPFilter(t *testing.T) {
	pass := filtered(t, arpProtocol(), []netip.Addr{v4, v4.Next(), v4.Next().Next().Next()})
	for _, tt := range []struct {
		name  string
		frame []byte
		want  bool
	}{
		{"for the first", from(asker4, v4), true},
		{"for the second", from(asker4, v4.Next()), true},
		{"for one between", from(asker4, v4.Next().Next()), false},
		{"for the one before", from(asker4, v4.Prev()), false},
		{"claims one", from(v4, asker4), true},
		{"is a probe of another", from(netip.IPv4Unspecified(), foreign4), false},
		{"is cut", from(asker4, v4)[:20], false},
	} {
		if got := pass(tt.frame); got != tt.want {
			t.Errorf("what %s passes: %v", tt.name, got)
		}
	}
	none := filtered(t, arpProtocol(), nil)
	if none(from(v4, v4)) {
		t.Error("without addresses something passes")
	}
}

func TestNDPFilter(t *testing.T) {
	near := netip.MustParseAddr("2001:db8::101")
	far := netip.MustParseAddr("2001:db8:0:1::100")
	pass := filtered(t, ndpProtocol(), []netip.Addr{v6, far})
	for _, tt := range []struct {
		name  string
		frame []byte
		want  bool
	}{
		{"solicitation", ns(v6, nil), true},
		{"advertisement", na(v6, askerMAC, nil), true},
		{"of another network", ns(far, nil), true},
		{"for a neighbour", ns(near, nil), false},
		{"advertisement of a neighbour", na(near, askerMAC, nil), false},
		{"UDP", ns(v6, func(s *solicitation) { s.header = 17 }), false},
		{"echo", ns(v6, func(s *solicitation) {
			s.fix, s.icmp = true, func(b []byte) []byte { b[0] = 128; return b }
		}), false},
	} {
		if got := pass(tt.frame); got != tt.want {
			t.Errorf("%s passes: %v", tt.name, got)
		}
	}
}

// TestFilterPassesOurs: frames about one of the addresses pass, however many there are
// and wherever they lie. Other frames do not pass if the addresses are few, and few others if they are close together.
func TestFilterPassesOurs(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 63, 64, 65, 300, 10_000} {
		for _, spread := range []uint32{1, 3, 1 << 16} {
			name := fmt.Sprintf("%d addresses up to %d apart", n, spread)
			var addrs4, addrs6 []netip.Addr
			ours := map[netip.Addr]bool{}
			value := uint32(10 << 24)
			for range n {
				value += 1 + random.Uint32N(spread)
				addrs4, addrs6 = append(addrs4, address4(value)), append(addrs6, address6(uint64(value%5), value))
				ours[address4(value)] = true
			}
			pass4, pass6 := filtered(t, arpProtocol(), addrs4), filtered(t, ndpProtocol(), addrs6)
			for i := range min(n, 500) {
				a4, a6 := addrs4[i*(n/min(n, 500))], addrs6[i*(n/min(n, 500))]
				if !pass4(from(asker4, a4)) || !pass4(from(a4, asker4)) || !pass6(ns(a6, nil)) {
					t.Fatalf("%s: what asks for %s or %s does not pass", name, a4, a6)
				}
				next := a4.Next()
				if n <= maxRanges && !ours[next] && pass4(from(asker4, next)) {
					t.Fatalf("%s: what asks for %s passes", name, next)
				}
			}
			if outside := address4(value + (value-10<<24)/16 + 1); pass4(from(asker4, outside)) {
				t.Errorf("%s: what asks for %s passes", name, outside)
			}
		}
	}
}

// TestFilterOfManyNetworks: more networks than a program can hold pass as a whole.
func TestFilterOfManyNetworks(t *testing.T) {
	var addrs []netip.Addr
	for i := range uint64(3 * maxNetworks) {
		addrs = append(addrs, address6(i, 1))
	}
	pass := filtered(t, ndpProtocol(), addrs)
	for _, a := range addrs {
		if !pass(ns(a, nil)) {
			t.Errorf("what asks for %s does not pass", a)
		}
	}
}

// TestFilterFollows: frames about an address pass as soon as it is set. Once nothing changes, frames about other
// addresses do not pass. An address beside other addresses usually needs no new filter.
func TestFilterFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan, random := newFakeLAN(eth0), rand.New(rand.NewPCG(1, 2))
		r := lan.responder()
		k := newPortKeeper(r)
		defer k.close()
		var d Desired
		passes := func(a netip.Addr) bool {
			proto, frame := r.protocols[0], []byte(nil)
			if a.Is4() {
				frame = from(asker4, a)
			} else {
				proto, frame = r.protocols[1], ns(a, nil)
			}
			filters := lan.conn("eth0", proto).filters
			return runs(t, filters[len(filters)-1], frame)
		}
		for i := range uint32(500) {
			near := 10<<24 + i
			for _, a := range []netip.Addr{address4(near), address6(0, near), address4(random.Uint32N(1<<31) + 1),
				address6(uint64(random.IntN(3)), random.Uint32())} {
				if far := a != address4(near) && a != address6(0, near); far && i%50 > 0 {
					continue
				}
				if random.IntN(2) == 0 {
					d.Announcements = d.Announcements.Put(a, &lb.Announcement{Address: a})
				} else {
					d.Owners = d.Owners.Put(a, "w2")
				}
			}
			r.Set(d)
			k.sync()
			for _, all := range []iter.Seq[netip.Addr]{d.Announcements.Keys(), d.Owners.Keys()} {
				for a := range all {
					if !passes(a) {
						t.Fatalf("step %d: what asks for %s does not pass", i, a)
					}
				}
			}
		}
		if n := len(lan.conn("eth0", r.protocols[0]).filters); n > 100 {
			t.Errorf("%d filters were set for 500 changes", n)
		}
		left, gone := address4(10<<24), address4(10<<24+100)
		r.Set(Desired{Announcements: announcing([]lb.Announcement{{Address: left}})})
		time.Sleep(checkInterval)
		k.sync()
		if !passes(left) || passes(gone) {
			t.Errorf("what asks for %s passes: %v, for %s: %v", left, passes(left), gone, passes(gone))
		}
	})
}

func address4(value uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], value)
	return netip.AddrFrom4(b)
}

func address6(network uint64, value uint32) netip.Addr {
	b := [16]byte{0x20, 1, 0xd, 0xb8}
	binary.BigEndian.PutUint64(b[4:], network)
	binary.BigEndian.PutUint32(b[12:], value)
	return netip.AddrFrom16(b)
}
