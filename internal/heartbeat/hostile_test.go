package heartbeat

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/rt"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// A packet without the key, or not from a peer, does not reach the thread. One with
// the prefix and a peer's address alone is refused. None of these keeps
// peers from being heard.
func TestHostilePackets(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		t.Setenv(speakerEnv, "for TestServe")
		a, b := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
		peers := []Peer{{"a", a, false}, {"b", b, false}}
		var speakers []*Heartbeat
		var deaths atomic.Int64
		for _, p := range peers {
			var h *Heartbeat
			h, err := New(Config{
				Log: slog.New(slog.DiscardHandler), NodeName: p.Name, Address: p.Address, Port: testPort, Keys: [][]byte{testKey},
				Timers: detect.Timers{Multiplier: 200}, Command: testCommand, Ask: func(string) detect.WireAnswer {
					return detect.WireAnswer{}
				}, Guest: func(net.Conn) {},
				Changed: func() {
					for _, m := range h.View().Members {
						if m.Status > detect.Alive {
							deaths.Add(1)
						}
					}
				},
			})
			must(t, err)
			h.Set(peers)
			ended := make(chan error, 1)
			go func() { ended <- h.Run(t.Context()) }()
			t.Cleanup(func() {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
			speakers = append(speakers, h)
		}
		hears := func(h *Heartbeat) bool {
			alive := 0
			for _, m := range h.View().Members {
				if m.Status == detect.Alive {
					alive++
				}
			}
			return alive == len(peers)
		}
		nstest.Until(t, within, "both hear each other", func() bool { return hears(speakers[0]) && hears(speakers[1]) })

		p := testPacket(3)
		forged := sealPacket(mustSeal(t, 1), nil, &p)
		seal := rt.NewSeals([][]byte{testKey}, sealKind)[0]
		genuine := sealPacket(seal, nil, &p)
		flood := func(from string, datagram []byte, times int) {
			conn, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(from)},
				net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, testPort)))
			must(t, err)
			defer conn.Close()
			for range times {
				_, _ = conn.Write(datagram)
			}
		}
		rejected := &speakers[0].shared.rejected
		flood("127.0.0.2", forged, 20000)
		if got := rejected.Load(); got != 0 {
			t.Errorf("%d packets without the prefix reached the thread", got)
		}
		flood("127.0.0.3", genuine, 20000)
		nstest.Until(t, within, "packets of a stranger are refused", func() bool { return rejected.Load() > 0 })
		rejected.Store(0)
		genuine[len(genuine)-1] ^= 1
		flood("127.0.0.2", genuine, 100)
		nstest.Until(t, within, "packets with the prefix are refused", func() bool { return rejected.Load() > 0 })
		nstest.Until(t, within, "both hear each other", func() bool { return hears(speakers[0]) && hears(speakers[1]) })
		if got := deaths.Load(); got != 0 {
			t.Errorf("%d times a node was not alive", got)
		}
	})
}

// spoofed is a UDP datagram with whatever source.
func spoofed(from, to netip.Addr, payload []byte) []byte {
	udp := make([]byte, rt.UDPHeaderLen)
	binary.BigEndian.PutUint16(udp, testPort)
	binary.BigEndian.PutUint16(udp[2:], testPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(rt.UDPHeaderLen+len(payload)))
	return spoofedIP(from, to, unix.IPPROTO_UDP, append(udp, payload...)) // a checksum of 0 is none (RFC 768)
}

// spoofedIP is an IPv4 packet with whatever source.
func spoofedIP(from, to netip.Addr, protocol byte, payload []byte) []byte {
	b := make([]byte, ipv4.HeaderLen)
	b[0], b[8], b[9] = 4<<4|ipv4.HeaderLen/4, 64, protocol
	copy(b[12:], from.AsSlice())
	copy(b[16:], to.AsSlice())
	return append(b, payload...)
}

// flood sends a datagram at a rate for a while, and returns how many a second went.
func flood(t *testing.T, from *nstest.NS, datagram []byte, to netip.Addr, rate int, lasts time.Duration) (sent int) {
	t.Helper()
	from.Do(func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		must(t, err)
		defer unix.Close(fd)
		address := &unix.SockaddrInet4{Addr: to.As4()}
		began := boottime()
		for boottime()-began < lasts {
			for due := int((boottime() - began) * time.Duration(rate) / time.Second); sent < due; sent++ {
				must(t, unix.Sendto(fd, datagram, 0, address))
			}
			pause := unix.NsecToTimespec(int64(ms))
			_ = unix.Nanosleep(&pause, nil)
		}
	})
	return int(time.Duration(sent) * time.Second / lasts)
}

// cpuOf is the CPU time that a process has taken.
func cpuOf(t *testing.T, process int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process))
	must(t, err)
	_, stat, _ := strings.Cut(string(b), ") ")
	var ticks int
	for _, field := range strings.Fields(stat)[11:13] { // utime and stime: proc_pid_stat(5), where state is the third
		n, err := strconv.Atoi(field)
		must(t, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * ms // USER_HZ is 100
}

// 100,000 forged packets a second at the port of a node take nothing from its ordinary programs that matters, whether
// their sender knows nothing or saw a packet and poses as a peer, or sends errors about it; and heartbeats go on.
func TestFlood(t *testing.T) {
	needRealtime(t)
	const rate, lasts = 100_000, 3 * time.Second
	p := testPacket(3)
	known := rt.NewSeals([][]byte{testKey}, sealKind)[0]
	seen := sealPacket(known, nil, &p)
	seen[len(seen)-1] ^= 1
	to, peer, stranger := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"),
		netip.MustParseAddr("192.0.2.250")
	for name, datagram := range map[string][]byte{
		"of a stranger":               spoofed(stranger, to, sealPacket(mustSeal(t, 1), nil, &p)),
		"of a sender that saw others": spoofed(peer, to, seen),
		"errors of a sender that saw others": spoofedIP(peer, to, unix.IPPROTO_ICMP,
			unreachable(t, netip.AddrPortFrom(to, testPort), peer, seen)),
	} {
		t.Run(name, func(t *testing.T) {
			s := cluster(t, 3, "192.0.2.%d")
			attacker := nstest.New(t)
			nstest.Veth(t, s[0].lan, "attacker", attacker, "eth0")
			s[0].lan.Enslave("attacker", "br0")
			attacker.AddAddress("eth0", stranger.String()+"/24")
			ready(t, s)
			before := s[0].await(t, "it sends heartbeats", func(l line) bool { return l.View.Settled && l.Child != 0 })
			program := newProgram(t)
			took := cpuOf(t, before.Child)
			sent := flood(t, attacker, datagram, to, rate, lasts)
			took = cpuOf(t, before.Child) - took
			longest := program.pause()
			t.Logf("%d packets a second; the heartbeat process took %.1f %% of a core; an ordinary program meanwhile: %v",
				sent, 100*float64(took)/float64(lasts), program)
			if longest > time.Second {
				t.Errorf("an ordinary program did not run for %v", longest)
			}
			for _, o := range s[1:] {
				l := o.await(t, "it is heard", func(l line) bool {
					return sees(s[0], detect.Alive)(l) || sees(s[0], detect.HoldDown)(l)
				})
				s[0].await(t, "it hears", func(l line) bool { return sees(o, detect.Alive)(l) || sees(o, detect.HoldDown)(l) })
				t.Logf("to %s: %+v", o.name, l.View.Members)
			}
		})
	}
}
