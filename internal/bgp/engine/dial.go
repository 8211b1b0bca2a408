package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
	_ "unsafe" // for passConn

	"github.com/osrg/gobgp/v4/api"
	gobgp "github.com/osrg/gobgp/v4/pkg/server"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// GoBGP waits for 1.5 to 2 s before it dials, by a constant. So the engine dials first, and gives GoBGP the connection
// as if the router had opened it. One attempt is not enough for a router that has not noticed yet that the last session
// from here is over. If all fail, GoBGP dials, every ConnectTime, and reports why there is no session.
const (
	// maxDials is how many attempts there are, dialInterval the time from one to the next. None takes longer.
	maxDials     = 8
	dialInterval = 250 * time.Millisecond
	// openTime bounds the wait for the router's OPEN.
	openTime = 5 * time.Second
)

// dialling is what became of the engine's attempts.
type dialling struct {
	// over: GoBGP dials, or there was a session, with which the engine ends.
	over bool
	// count is how many attempts there were, at is the time of the last one.
	count int
	at    time.Time
	// conn is the connection that GoBGP got last; nil for none.
	conn *listened
	// occupied is the address from which another process has a connection to the router; the zero Addr for none.
	occupied netip.Addr
	// counters are what was counted of peers that were replaced.
	counters lb.SessionCounters
}

// step is what to do next about a session.
type step uint8

const (
	wait step = iota
	dialNow
	// restart has GoBGP forget a connection that failed, after which it would be idle for 5 s.
	restart
	// handOver leaves dialling to GoBGP.
	handOver
)

// next decides by the state of the session, and by whether GoBGP still has the engine's last connection. On a busy node
// GoBGP may need longer than dialInterval to take it. A second connection would end the session of the first: BIRD has
// one session with an address, and FRR takes a newcomer for a restart (RFC 4724 section 4.2).
func (d dialling) next(state api.PeerState_SessionState, isOpen bool, now time.Time) step {
	age, idle := now.Sub(d.at), state == api.PeerState_SESSION_STATE_IDLE
	active, openSent := state == api.PeerState_SESSION_STATE_ACTIVE, state == api.PeerState_SESSION_STATE_OPENSENT
	waitsForOpen := openSent || isOpen && (active || idle)
	switch {
	case d.over:
		return wait
	case waitsForOpen && age >= openTime:
		return handOver
	case isOpen, !idle && !active, age < dialInterval:
		return wait
	case d.count == maxDials:
		return handOver
	case idle && d.conn != nil:
		return restart
	case idle: // for a moment, in which GoBGP would close a connection
		return wait
	}

	return dialNow
}

// passConn gives a server a connection as its listener would. GoBGP exports nothing for it. It reads what other methods
// of the server write, all of which one goroutine calls here.
//
//go:linkname passConn github.com/osrg/gobgp/v4/pkg/server.(*BgpServer).passConnToPeer
func passConn(*gobgp.BgpServer, net.Conn)

// dial does what is next about a session.
func (e *engine) dial(p *api.Peer) error {
	d, now := &e.dialling, time.Now()
	isOpen := d.conn != nil && !d.conn.isClosed.Load()
	switch todo := d.next(p.State.SessionState, isOpen, now); todo {
	case dialNow:
		d.at, d.occupied = now, netip.Addr{}
		time.AfterFunc(dialInterval, e.notes.wake.Kick)
		if from, isOccupied := occupied(e.settings); isOccupied {
			d.occupied = from
			return nil // an attempt would end the session of the other process, or be refused
		}
		d.count++
		time.AfterFunc(openTime, e.notes.wake.Kick)
		d.conn = nil
		if conn, err := connect(e.settings); err == nil {
			d.conn = &listened{TCPConn: conn.(*net.TCPConn), notes: e.notes}
			passConn(e.gobgp, d.conn)
		}
	case restart, handOver:
		d.conn, d.over = nil, todo == handOver
		d.counters = d.counters.Plus(lb.SessionCounters{}, countersOf(p))
		if err := e.gobgp.DeletePeer(context.Background(), &api.DeletePeerRequest{Address: e.settings.Address.String()}); err != nil {
			return fmt.Errorf("replace the peer: %w", err)
		}
		return e.addPeer(apiPeer(e.settings, !d.over))
	}

	return nil
}

// connect dials a router as GoBGP does.
func connect(s lb.Peer) (net.Conn, error) {
	d := net.Dialer{Timeout: dialInterval, KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		failed := c.Control(func(fd uintptr) { err = setOptions(int(fd), s) })
		return errors.Join(failed, err)
	}}
	if s.SourceAddress.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(s.SourceAddress, 0))
	}

	return d.Dial("tcp", netip.AddrPortFrom(s.Address, s.Port).String())
}

// setOptions sets the TTLs of a socket, and the key of its signatures. Packets to a router of another AS that is one
// hop away get no farther.
func setOptions(fd int, s lb.Peer) (err error) {
	level, ttl, minTTL, key := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_MINTTL, unix.TCPMD5Sig{}
	address := key.Addr.Data[2:] // sockaddr_in without its family
	if key.Addr.Family = unix.AF_INET; s.Address.Is6() {
		level, ttl, minTTL, key.Addr.Family = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_MINHOPCOUNT, unix.AF_INET6
		address = key.Addr.Data[6:] // sockaddr_in6
	}

	switch {
	case s.MinTTL != 0:
		err = errors.Join(
			unix.SetsockoptInt(fd, level, ttl, maxTTL),
			unix.SetsockoptInt(fd, level, minTTL, int(s.MinTTL)),
		)
	case s.PeerASN == 0 || s.PeerASN == s.LocalASN:
	case s.MultiHop:
		err = unix.SetsockoptInt(fd, level, ttl, maxTTL)
	default:
		err = unix.SetsockoptInt(fd, level, ttl, 1)
	}

	if s.Password != "" {
		copy(address, s.Address.AsSlice())
		key.Keylen = uint16(copy(key.Key[:], s.Password))
		err = errors.Join(err, unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, &key))
	}

	return err
}
