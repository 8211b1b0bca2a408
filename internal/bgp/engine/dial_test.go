package engine

import (
	"context"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestDial: the engine dials at once, and again while no session comes of it; in the end GoBGP does. What was counted
// stays counted.
func TestDial(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.9:0")
	must(t, err)
	defer listener.Close()
	p := lb.Peer{
		Name: "r", Address: netip.MustParseAddr("127.0.0.9"), Port: uint16(listener.Addr().(*net.TCPAddr).Port),
		RouterID: netip.MustParseAddr("192.0.2.1"), LocalASN: 65000, PeerASN: 65001, HoldTime: 90 * time.Second,
		ConnectTime: time.Second,
	}
	begin, times, notifications := time.Now(), []time.Duration{}, uint64(0)
	e, err := start(p)
	must(t, err)
	for o := (lb.Order{Peer: &p}); len(times) <= maxDials; o = (lb.Order{}) {
		notice, lost, err := e.execute(o)
		if c := notice.Counters; err != nil || lost || c.Sent < notifications {
			t.Fatalf("lost %t, %v, %+v after %d notifications", lost, err, c, notifications)
		}
		notifications = notice.Counters.Sent
		if time.Since(begin) > 20*time.Second {
			t.Fatalf("it dialled after %v", times)
		}
		_ = listener.(*net.TCPListener).SetDeadline(time.Now().Add(10 * time.Millisecond))
		conn, err := listener.Accept()
		if err != nil {
			continue
		}
		times = append(times, time.Since(begin))
		_, _ = conn.Write(make([]byte, gobgp.BGP_HEADER_LENGTH)) // no message, to which GoBGP answers with a NOTIFICATION
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = io.Copy(io.Discard, conn)
		conn.Close()
	}
	t.Logf("dialled after %v, %d notifications", times, notifications)
	early, last := times[maxDials-1]-times[0], times[maxDials]-times[maxDials-1]
	if early < (maxDials-1)*dialInterval || last < dialInterval+1500*time.Millisecond {
		t.Errorf("it dialled after %v", times)
	}
	if notifications != maxDials {
		t.Errorf("%d notifications are counted", notifications)
	}
	if times[0] > 1500*time.Millisecond {
		t.Errorf("it dialled after %v, not before GoBGP would have", times[0])
	}
}

func TestDialSteps(t *testing.T) {
	const (
		idle, active          = api.PeerState_SESSION_STATE_IDLE, api.PeerState_SESSION_STATE_ACTIVE
		opensent, established = api.PeerState_SESSION_STATE_OPENSENT, api.PeerState_SESSION_STATE_ESTABLISHED
		openconfirm           = api.PeerState_SESSION_STATE_OPENCONFIRM
		open, closed          = true, false
	)
	at := time.Now()
	ago := func(d time.Duration) time.Time { return at.Add(-d) }
	soon, due, late := ago(dialInterval/2), ago(dialInterval), ago(openTime)
	passed := &recordingConn{}
	for _, tt := range []struct {
		name   string
		state  api.PeerState_SessionState
		isOpen bool
		d      dialling
		want   dialStep
	}{
		{"GoBGP is not ready", idle, closed, dialling{}, wait},
		{"the first", active, closed, dialling{}, dialNow},
		{"the last one failed just now", active, closed, dialling{count: 1, last: soon}, wait},
		{"it failed a while ago", active, closed, dialling{count: 1, last: due}, dialNow},
		{"GoBGP closed the connection", active, closed, dialling{count: 1, last: due, conn: passed}, dialNow},
		{"GoBGP has not taken the connection yet", active, open, dialling{count: 1, last: due, conn: passed}, wait},
		{"GoBGP never takes it", active, open, dialling{count: 1, last: late, conn: passed}, handOver},
		{"idle before GoBGP closes it", idle, open, dialling{count: 1, last: due, conn: passed}, wait},
		{"idle, and GoBGP never closes it", idle, open, dialling{count: 1, last: late, conn: passed}, handOver},
		{"the router closed it just now", idle, closed, dialling{count: 1, last: soon, conn: passed}, wait},
		{"the router closed it", idle, closed, dialling{count: 1, last: due, conn: passed}, restart},
		{"forgotten, and not ready", idle, closed, dialling{count: 1, last: due}, wait},
		{"all failed", active, closed, dialling{count: maxDials, last: due}, handOver},
		{"the router closed them all", idle, closed, dialling{count: maxDials, last: due, conn: passed}, handOver},
		{"no OPEN yet", opensent, open, dialling{count: 1, last: due, conn: passed}, wait},
		{"no OPEN", opensent, open, dialling{count: 1, last: late, conn: passed}, handOver},
		{"an OPEN", openconfirm, open, dialling{count: 1, last: late, conn: passed}, wait},
		{"up", established, open, dialling{count: 1, last: late, conn: passed, over: true}, wait},
		{"handed over", active, closed, dialling{count: maxDials, last: late, over: true}, wait},
		{"lost", idle, closed, dialling{count: 1, last: late, conn: passed, over: true}, wait},
	} {
		if got := tt.d.next(tt.state, tt.isOpen, at); got != tt.want {
			t.Errorf("%s: step %d, want %d", tt.name, got, tt.want)
		}
	}
}

// TestConnect: a connection has the TTLs of its peer, and signs its segments.
func TestConnect(t *testing.T) {
	for _, address := range []string{"127.0.0.9", "::1"} {
		for _, tt := range []struct {
			name        string
			change      func(*lb.Peer)
			ttl, minTTL int
		}{
			{"same AS", func(p *lb.Peer) { p.PeerASN = p.LocalASN }, 64, 0},
			{"any AS", func(p *lb.Peer) { p.PeerASN = 0 }, 64, 0},
			{"another AS", func(*lb.Peer) {}, 1, 0},
			{"several hops", func(p *lb.Peer) { p.MultiHop = true }, 255, 0},
			{"TTL security", func(p *lb.Peer) { p.MinTTL = 254 }, 255, 254},
			{"a password", func(p *lb.Peer) { p.Password = "Geheim-7" }, 1, 0},
			{"a source", func(p *lb.Peer) { p.SourceAddress = p.Address }, 1, 0},
		} {
			p := lb.Peer{Address: netip.MustParseAddr(address), LocalASN: 65000, PeerASN: 65001}
			tt.change(&p)
			// The key is for connections from the loopback's first address.
			config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
				from := p
				if p.Address.Is4() {
					from.Address = netip.MustParseAddr("127.0.0.1")
				}
				return c.Control(func(fd uintptr) { _ = setOptions(int(fd), from) })
			}}
			config.SetMultipathTCP(false) // such a socket has no options of TCP
			l, err := config.Listen(context.Background(), "tcp", net.JoinHostPort(address, "0"))
			if err != nil {
				t.Skipf("no such loopback address: %v", err)
			}
			p.Port = uint16(l.Addr().(*net.TCPAddr).Port)
			conn, err := connect(p)
			if err != nil {
				t.Fatalf("%s, %s: %v", address, tt.name, err)
			}
			raw, err := conn.(*net.TCPConn).SyscallConn()
			must(t, err)
			_ = raw.Control(func(fd uintptr) {
				level, ttl, minTTL := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_MINTTL
				if p.Address.Is6() {
					level, ttl, minTTL = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_MINHOPCOUNT
				}
				got, err := unix.GetsockoptInt(int(fd), level, ttl)
				gotMin, failed := unix.GetsockoptInt(int(fd), level, minTTL)
				if got != tt.ttl || gotMin != tt.minTTL || err != nil || failed != nil {
					t.Errorf("%s, %s: TTL %d, at least %d, %v, %v", address, tt.name, got, gotMin, err, failed)
				}
			})
			if p.Password != "" {
				unsigned := p
				unsigned.Password = ""
				if other, err := connect(unsigned); err == nil {
					t.Errorf("%s: a connection without a signature", address)
					other.Close()
				}
			}
			conn.Close()
			l.Close()
		}
	}
}
