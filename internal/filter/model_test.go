package filter

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// lets is the filter in plain words: does a packet come in?
func lets(d draft, from, to netip.Addr, protocol string, port uint16) bool {
	guarded := false
	for _, r := range d.Guarded {
		guarded = guarded || r.Contains(to)
	}
	for _, frontend := range d.Frontends {
		if frontend.Address != to {
			continue
		}
		guarded = true
		if frontend.Protocol != protocol || frontend.Port != port {
			continue
		}
		if frontend.Refuse {
			return false
		}
		for _, p := range frontend.Deny {
			if plain(p).Contains(from) {
				return false
			}
		}
		for _, p := range frontend.Allow {
			if plain(p).Contains(from) {
				return true
			}
		}
		return !frontend.Restricted
	}
	return !guarded
}

// plain undoes the mapping of an IPv4 prefix into IPv6.
func plain(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// dice makes random filters and packets that are near each other.
type dice struct{ *rand.Rand }

func (d dice) pick(list ...string) string { return list[d.IntN(len(list))] }

// address is one of a few, or near one.
func (d dice) address(v6 bool, base string) netip.Addr {
	a := addr(base).AsSlice()
	a[len(a)-1] ^= byte(d.IntN(8))
	if d.IntN(4) == 0 {
		a[d.IntN(len(a))] ^= 1 << d.IntN(8)
	}
	out, _ := netip.AddrFromSlice(a)
	return out
}

func (d dice) source(v6 bool) netip.Addr {
	for {
		a := d.address(v6, map[bool]string{false: "198.18.0.16", true: "2001:db8:5::10"}[v6])
		// Not what the node would drop as a martian.
		if !a.IsLoopback() && !a.IsMulticast() && !a.IsUnspecified() && !a.IsLinkLocalUnicast() && !a.Is4In6() &&
			(v6 || a.AsSlice()[0] != 0 && a.AsSlice()[0] < 224 && a.AsSlice()[0] != 127) && (!v6 || a.AsSlice()[0] == 0x20) {
			return a
		}
	}
}

func (d dice) destination(v6 bool) netip.Addr {
	for {
		a := d.address(v6, map[bool]string{false: "192.0.2.16", true: "2001:db8:f::10"}[v6])
		if v6 && a.AsSlice()[0] == 0x20 && a != addr("2001:db8:f::") || !v6 && a.AsSlice()[0] == 192 {
			return a
		}
	}
}

func (d dice) ranges(v6 bool) (list []netip.Prefix) {
	for range d.IntN(5) {
		a := d.source(v6)
		bits := d.IntN(a.BitLen() + 1)
		if d.IntN(3) > 0 {
			// Where neighbours touch and nest.
			bits = a.BitLen() - d.IntN(6)
		}
		p := netip.PrefixFrom(a, bits).Masked()
		if !v6 && d.IntN(8) == 0 {
			p = netip.PrefixFrom(netip.AddrFrom16(p.Addr().As16()), p.Bits()+96)
		}
		list = append(list, p)
	}
	if d.IntN(8) == 0 { // of the other family
		list = append(list, netip.PrefixFrom(d.source(!v6), d.IntN(33)).Masked())
	}
	return list
}

func (d dice) desired() draft {
	var out draft
	for _, v6 := range []bool{false, true} {
		for range d.IntN(3) {
			from, to := d.destination(v6), d.destination(v6)
			if to.Less(from) {
				from, to = to, from
			}
			out.Guarded = append(out.Guarded, lb.Range{From: from, To: to})
		}
	}
	// As the plan has them: disjoint, ordered.
	out.Guarded = disjoint(out.Guarded)
	seen := make(map[string]bool)
	for range d.IntN(24) {
		v6 := d.IntN(2) == 0
		frontend := lb.Frontend{
			Address: d.destination(v6), Protocol: d.pick("TCP", "UDP", "SCTP"), Port: uint16(80 + d.IntN(3)),
			Access: lb.Access{Restricted: d.IntN(3) > 0}, Refuse: d.IntN(12) == 0,
		}
		if frontend.Restricted {
			frontend.Allow = d.ranges(v6)
		}
		if d.IntN(2) == 0 {
			frontend.Deny = d.ranges(v6)
		}
		if k := fmt.Sprint(frontend.Address, frontend.Protocol, frontend.Port); !seen[k] {
			seen[k] = true
			out.Frontends = append(out.Frontends, frontend)
		}
	}
	return out
}

func disjoint(ranges []lb.Range) (out []lb.Range) {
	for _, r := range ranges {
		clear := true
		for _, o := range out {
			clear = clear && !r.Overlaps(o)
		}
		if clear {
			out = append(out, r)
		}
	}
	return out
}

// packet makes one with a number in it.
func packet(from, to netip.Addr, protocol string, port uint16, number uint32) []byte {
	transport := make([]byte, 32)
	binary.BigEndian.PutUint16(transport, 4000)
	binary.BigEndian.PutUint16(transport[2:], port)
	var proto byte
	switch protocol {
	case "TCP":
		proto = unix.IPPROTO_TCP
		transport[12], transport[13] = 5<<4, 2 // data offset, SYN
	case "UDP":
		proto = unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(transport[4:], uint16(len(transport)))
	case "SCTP":
		proto = unix.IPPROTO_SCTP
	}
	binary.BigEndian.PutUint32(transport[28:], number)
	var header []byte
	if from.Is4() {
		header = make([]byte, 20)
		header[0], header[8], header[9] = 0x45, 64, proto
		binary.BigEndian.PutUint16(header[2:], uint16(20+len(transport)))
		copy(header[12:], from.AsSlice())
		copy(header[16:], to.AsSlice())
		var sum uint32
		for i := 0; i < 20; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(header[i:]))
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(header[10:], ^uint16(sum))
	} else {
		header = make([]byte, 40)
		header[0], header[6], header[7] = 0x60, proto, 64
		binary.BigEndian.PutUint16(header[4:], uint16(len(transport)))
		copy(header[8:], from.AsSlice())
		copy(header[24:], to.AsSlice())
	}
	return append(header, transport...)
}

// TestModel: random filters, each led to from the one before, judge random packets in the kernel as the model does.
func TestModel(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const rounds, packets = 250, 400
		seed := uint64(time.Now().UnixNano())
		t.Log("seed", seed)
		roll := dice{rand.New(rand.NewPCG(seed, 0))}
		w := newWorld(t)
		survivors := w.survivors()
		out := w.sender()
		n := rounds
		if testing.Short() || nstest.Race() {
			n /= 10
		}
		for round := range n {
			number := func(i int) uint32 { return uint32(round*2*packets + i) }
			d := roll.desired()
			w.set(d)
			if round%10 == 0 {
				w.intact(w.table)
			}
			want := make(map[uint32]bool)
			told := make(map[uint32]string)
			for n := range packets {
				i := number(n)
				v6 := roll.IntN(2) == 0
				from, to := roll.source(v6), roll.destination(v6)
				protocol, port := roll.pick("TCP", "UDP", "SCTP"), uint16(80+roll.IntN(3))
				if len(d.Frontends) > 0 && roll.IntN(2) == 0 {
					// To a frontend, from a source near its ranges.
					frontend := d.Frontends[roll.IntN(len(d.Frontends))]
					if v6 = frontend.Address.Is6(); v6 != from.Is6() {
						from = roll.source(v6)
					}
					to, protocol, port = frontend.Address, frontend.Protocol, frontend.Port
				}
				want[i] = lets(d, from, to, protocol, port)
				told[i] = fmt.Sprintf("%s -> %s %s %d", from, to, protocol, port)
				out(packet(from, to, protocol, port, i))
			}
			// The last comes in for certain: all before it have been judged by then.
			out(packet(addr("198.18.0.1"), addr("203.0.113.255"), "UDP", 9, number(packets)))
			got := survivors(number(packets))
			for i := range want {
				if got[i] != want[i] {
					t.Fatalf("%s: comes in %v, want %v\n%+v", told[i], got[i], want[i], d)
				}
			}
		}
	})
}

// survivors logs what gets past the filter, and returns a function that reads the numbers of these packets up
// to a last one. Nothing is tracked, so that neither connections nor their number matter.
func (w *world) survivors() func(last uint32) map[uint32]bool {
	const group = 99
	w.nft(`
table inet beyond {
	chain raw { type filter hook prerouting priority -310; iifname eth0 notrack
	}
	chain in { type filter hook prerouting priority -100; iifname eth0 meta l4proto { tcp, udp, sctp } log group 99 snaplen 128 queue-threshold 1 drop
	}
}`)
	conn, err := openLog(group)
	must(w.t, err)
	w.t.Cleanup(func() { conn.Close() })
	must(w.t, conn.SetReadBuffer(16<<20))
	return func(last uint32) map[uint32]bool {
		got := make(map[uint32]bool)
		_ = conn.SetReadDeadline(time.Now().Add(patient))
		for !got[last] {
			messages, err := conn.Receive()
			if err != nil {
				w.t.Fatalf("after %d packets: %v", len(got), err)
			}
			for _, m := range messages {
				if _, packet := parseLogged(m); packet != nil {
					got[binary.BigEndian.Uint32(packet[len(packet)-4:])] = true
				}
			}
		}
		return got
	}
}

// sender puts IP packets on the client's wire to the node. It keeps the caller on one processor: each has a
// queue of its own for what a virtual link receives, and packets of several would overtake each other.
func (w *world) sender() func([]byte) {
	w.t.Helper()
	runtime.LockOSThread()
	var one unix.CPUSet
	must(w.t, unix.SchedGetaffinity(0, &one))
	for cpu := range len(one) * 64 {
		if one.IsSet(cpu) {
			one.Zero()
			one.Set(cpu)
			break
		}
	}
	must(w.t, unix.SchedSetaffinity(0, &one))
	var fd int
	var err error
	w.client.Do(func() { fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0) })
	must(w.t, err)
	w.t.Cleanup(func() { unix.Close(fd) })
	to := unix.SockaddrLinklayer{Ifindex: w.client.Link("eth0").Attrs().Index, Halen: 6}
	frame := append(append([]byte{}, w.node.MAC("eth0")...), w.client.MAC("eth0")...)
	return func(packet []byte) {
		ethertype := []byte{0x08, 0x00}
		if packet[0]>>4 == 6 {
			ethertype = []byte{0x86, 0xdd}
		}
		must(w.t, unix.Sendto(fd, append(append(frame[:12:12], ethertype...), packet...), 0, &to))
	}
}
