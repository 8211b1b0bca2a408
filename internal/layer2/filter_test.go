package layer2

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
	"golang.org/x/net/bpf"
)

// filtered runs a protocol's program on frames, without its first instructions, which
// ask the kernel for the packet type.
func filtered(t *testing.T, proto protocol, addrs []netip.Addr) func(frame []byte) bool {
	t.Helper()
	program := proto.filter(addrs)
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
	if err != nil {
		t.Fatal(err)
	}
	n, err := vm.Run(frame)
	if err != nil {
		t.Fatal(err)
	}
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
		{"echo", ns(v6, func(s *solicitation) { s.fix, s.icmp = true, func(b []byte) []byte { b[0] = 128; return b } }), false},
	} {
		if got := pass(tt.frame); got != tt.want {
			t.Errorf("%s passes: %v", tt.name, got)
		}
	}
}

// TestFilterPassesOurs: frames about one of the addresses pass, however many there are
// and wherever they lie. If they are few or close together nothing else passes.
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
			slices.SortFunc(addrs6, netip.Addr.Compare)
			pass4, pass6 := filtered(t, arpProtocol(), addrs4), filtered(t, ndpProtocol(), addrs6)
			for i := range min(n, 500) {
				a4, a6 := addrs4[i*(n/min(n, 500))], addrs6[i*(n/min(n, 500))]
				if !pass4(from(asker4, a4)) || !pass4(from(a4, asker4)) || !pass6(ns(a6, nil)) {
					t.Fatalf("%s: what asks for %s or %s does not pass", name, a4, a6)
				}
				next := a4.Next()
				if exact := n <= mostRanges || spread == 1; exact && !ours[next] && pass4(from(asker4, next)) {
					t.Fatalf("%s: what asks for %s passes", name, next)
				}
			}
			if outside := address4(value + 1); pass4(from(asker4, outside)) {
				t.Errorf("%s: what asks for %s passes", name, outside)
			}
		}
	}
}

// TestFilterOfManyNetworks: more networks than a program can hold pass as a whole.
func TestFilterOfManyNetworks(t *testing.T) {
	var addrs []netip.Addr
	for i := range uint64(3 * mostGroups) {
		addrs = append(addrs, address6(i, 1))
	}
	pass := filtered(t, ndpProtocol(), addrs)
	for _, a := range addrs {
		if !pass(ns(a, nil)) {
			t.Errorf("what asks for %s does not pass", a)
		}
	}
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
