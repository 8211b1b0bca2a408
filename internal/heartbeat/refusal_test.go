package heartbeat

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/rt"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// refusing is a thread that the test drives, with one peer, in whose name the test reports that no program listens.
type refusing struct {
	*beatThread
	local, peer netip.Addr
}

func newRefusing(t *testing.T, local, peer string) *refusing {
	t.Helper()
	r := &refusing{local: netip.MustParseAddr(local), peer: netip.MustParseAddr(peer)}
	self := Peer{"a", r.local, false}
	r.beatThread = newTestThread(t, self, []Peer{self, {"b", r.peer, false}}, detect.Timers{})
	r.carryOutOrders()
	return r
}

// unreachable is a message of port unreachable that quotes a packet of ours to a peer.
func unreachable(t *testing.T, local netip.AddrPort, peer netip.Addr, packet []byte) []byte {
	t.Helper()
	datagram := make([]byte, rt.UDPHeaderLen, rt.UDPHeaderLen+len(packet))
	binary.BigEndian.PutUint16(datagram, local.Port())
	binary.BigEndian.PutUint16(datagram[2:], testPort)
	binary.BigEndian.PutUint16(datagram[4:], uint16(rt.UDPHeaderLen+len(packet)))
	datagram = append(datagram, packet...)
	message := icmp.Message{Type: ipv4.ICMPTypeDestinationUnreachable, Code: icmpPort}
	header := make([]byte, ipv4.HeaderLen)
	header[0], header[8], header[9] = 4<<4|ipv4.HeaderLen/4, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(header[2:], uint16(len(header)+len(datagram)))
	copy(header[12:], local.Addr().AsSlice())
	copy(header[16:], peer.AsSlice())
	if peer.Is6() {
		message = icmp.Message{Type: ipv6.ICMPTypeDestinationUnreachable, Code: icmp6Port}
		header = make([]byte, ipv6.HeaderLen)
		header[0], header[6], header[7] = 6<<4, unix.IPPROTO_UDP, 64
		binary.BigEndian.PutUint16(header[4:], uint16(len(datagram)))
		copy(header[8:], local.Addr().AsSlice())
		copy(header[24:], peer.AsSlice())
	}
	message.Body = &icmp.DstUnreach{Data: append(header, datagram...)}
	b, err := message.Marshal(nil)
	must(t, err)
	return b
}

// forge sends port unreachable with the peer's address, quoting a packet to it from a port of this node that begins so.
func (r *refusing) forge(t *testing.T, port uint16, packet []byte, times int) {
	t.Helper()
	b, network := unreachable(t, netip.AddrPortFrom(r.local, port), r.peer, packet), "ip4:icmp"
	if r.peer.Is6() {
		network = "ip6:ipv6-icmp"
	}
	conn, err := net.DialIP(network, &net.IPAddr{IP: r.peer.AsSlice()}, &net.IPAddr{IP: r.local.AsSlice()})
	must(t, err)
	defer conn.Close()
	for range times {
		_, err := conn.Write(b)
		must(t, err)
	}
}

// datagram sends one in the peer's name.
func (r *refusing) datagram(t *testing.T, payload []byte) {
	t.Helper()
	conn, err := net.DialUDP("udp", &net.UDPAddr{IP: r.peer.AsSlice()},
		net.UDPAddrFromAddrPort(netip.AddrPortFrom(r.local, testPort)))
	must(t, err)
	defer conn.Close()
	_, err = conn.Write(payload)
	must(t, err)
}

// portOf returns the port that a socket is bound to.
func portOf(t *testing.T, fd int) uint16 {
	t.Helper()
	a, err := unix.Getsockname(fd)
	must(t, err)
	if a6, ok := a.(*unix.SockaddrInet6); ok {
		return uint16(a6.Port)
	}
	return uint16(a.(*unix.SockaddrInet4).Port)
}

// A refusal counts where it quotes what only this node can have sent, and not where an attacker made it up. However
// many errors come, the thread takes no more of them between two heartbeats than it may, and those that come to the
// port of heartbeats keep none of these away.
func TestForgedRefusals(t *testing.T) {
	for family, addresses := range map[string][2]string{
		"IPv4": {"127.0.0.1", "127.0.0.2"}, "IPv6": {"2001:db8::1", "2001:db8::2"},
	} {
		t.Run(family, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				if family == "IPv6" {
					nstest.Self(t).AddAddress("lo", addresses[0]+"/128", addresses[1]+"/128")
				}
				r := newRefusing(t, addresses[0], addresses[1])
				// An address that was just given has no route for a moment.
				nstest.Until(t, within, "packets to the peer are refused", func() bool {
					conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(r.peer, testPort)))
					if err != nil {
						return false
					}
					defer conn.Close()
					_, _ = conn.Write([]byte{0})
					_, err = conn.Write([]byte{0}) // returns the error of the one before
					return errors.Is(err, unix.ECONNREFUSED)
				})
				counts := func(what string, refused uint64, errors int) {
					t.Helper()
					nstest.Until(t, within, what, func() bool {
						r.wait(0, true)
						r.receive()
						return r.detector.Stats().Refused >= refused && r.refusalsRead >= errors
					})
					if got := r.detector.Stats().Refused; got != refused {
						t.Errorf("%s: %d refusals count, want %d", what, got, refused)
					}
				}
				s := &sender{
					r.beatThread, detect.Packet{From: detect.NodeIDOf("a"), To: detect.NodeIDOf("b"), Boot: 1, Hold: time.Second},
				}
				s.sendNow(detect.Packet{Ping: true})
				counts("the kernel refuses a packet", 1, 1)

				r.refusalsRead = 0
				port := portOf(t, r.sockets.out.fd)
				r.forge(t, port, nil, 50)
				r.forge(t, port, make([]byte, len(new(detect.Packet).Append(nil))), 50)
				counts("refusals of what was never sent", 1, 100)
				prefix := binary.BigEndian.AppendUint64(nil, r.seals[0].Prefix)
				r.forge(t, port, prefix, 1)
				counts("a refusal that quotes the prefix", 2, 0)

				r.refusalsRead = 0
				r.forge(t, port, nil, maxRefusals+100)
				counts("as many as it may take", 2, maxRefusals)
				r.wait(0, true)
				if r.receive(); r.refusalsRead > maxRefusals {
					t.Errorf("it took %d errors, want %d", r.refusalsRead, maxRefusals)
				}
				r.refusalsRead = 0
				counts("the rest waited for the next heartbeat", 2, 85)

				r.forge(t, testPort, prefix, 20_000)
				r.datagram(t, prefix)
				nstest.Until(t, within, "a datagram arrives behind many errors", func() bool {
					r.read, r.refusalsRead = 0, 0
					r.wait(0, true)
					r.receive()
					return r.shared.rejected.Load() > 0
				})
			})
		})
	}
}

// TestTryRealtime: it needs SYS_NICE, and leaves the thread as it was.
func TestTryRealtime(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	policy := func() uint32 {
		a, err := unix.SchedGetAttr(0, 0)
		must(t, err)
		return a.Policy
	}
	before := policy()
	if err := TryRealtime(); err != nil {
		t.Skipf("no real-time priority here: %v", err)
	}
	if after := policy(); after != before {
		t.Errorf("the policy of the thread was %d and is %d", before, after)
	}
	limit := unix.Rlimit{}
	if err := unix.Getrlimit(unix.RLIMIT_RTPRIO, &limit); err != nil || limit.Cur > 0 {
		t.Skipf("everybody may have real-time priority here: %+v, %v", limit, err)
	}
	nstest.Without(t, unix.CAP_SYS_NICE, func() {
		if err := TryRealtime(); !errors.Is(err, unix.EPERM) {
			t.Errorf("without SYS_NICE: %v", err)
		}
	})
}
