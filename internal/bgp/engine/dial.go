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

// GoBGP waits for 1.5 to 2 s before it dials, by a constant. So the engine dials first, and passes GoBGP the connection
// as if the router had opened it. It dials several times: a router may not have noticed yet that the last session from
// here is over. If all attempts fail, GoBGP dials every ConnectTime, and reports why there is no session.
const (
	// maxDials is the number of attempts.
	maxDials = 8
	// dialInterval is the time between two attempts, and the timeout of an attempt.
	dialInterval = 250 * time.Millisecond
	// openTime is the timeout for the router's OPEN.
	openTime = 5 * time.Second
)

// dialling is the state of the engine's attempts.
type dialling struct {
	// over reports whether the engine dials no more: GoBGP does, or there was a session, with which the engine ends.
	over bool
	// count is the number of attempts, and last the time of the last one.
	count int
	last  time.Time
	// conn is the connection that was passed to GoBGP last; nil for none.
	conn *recordingConn
	// occupied is the address from which another process has a connection to the router; the zero Addr for none.
	occupied netip.Addr
	// counters are the counters of GoBGP's peers that were replaced.
	counters lb.SessionCounters
}

// dialStep is the next action of the engine towards a session.
type dialStep uint8

const (
	wait dialStep = iota
	dialNow
	// restart replaces GoBGP's peer after a failed connection. GoBGP would keep the peer idle for 5 s.
	restart
	// handOver leaves the dialling to GoBGP.
	handOver
)

// next chooses the next step by the state of the session, and by whether GoBGP has the engine's last connection open.
// On a busy node GoBGP may need longer than dialInterval to accept the connection. A second connection would end the
// session of the first: BIRD has one session with an address, and FRR takes a new connection for a restart (RFC 4724
// section
// 4.2).
func (d dialling) next(state api.PeerState_SessionState, isOpen bool, at time.Time) dialStep {
	age := at.Sub(d.last)
	isIdle := state == api.PeerState_SESSION_STATE_IDLE
	isActive := state == api.PeerState_SESSION_STATE_ACTIVE
	openSent := state == api.PeerState_SESSION_STATE_OPENSENT
	waitsForOpen := openSent || isOpen && (isActive || isIdle)
	switch {
	case d.over:
		return wait
	case waitsForOpen && age >= openTime:
		return handOver
	case isOpen, !isIdle && !isActive, age < dialInterval:
		return wait
	case d.count == maxDials:
		return handOver
	case isIdle && d.conn != nil:
		return restart
	case isIdle: // for a moment, in which GoBGP would close a connection
		return wait
	}
	return dialNow
}

// passConn passes a server a connection, as its listener would. GoBGP exports no method for it. It is not safe for
// concurrent use with other methods of the server: one goroutine calls them all.
//
//go:linkname passConn github.com/osrg/gobgp/v4/pkg/server.(*BgpServer).passConnToPeer
func passConn(*gobgp.BgpServer, net.Conn)

// dial takes the next step towards a session.
func (e *engine) dial(p *api.Peer) error {
	d := &e.dialling
	isOpen := d.conn != nil && !d.conn.isClosed.Load()
	switch d.next(p.State.SessionState, isOpen, time.Now()) {
	case dialNow:
		e.dialRouter()
	case restart:
		d.conn = nil
		return e.replacePeer(p)
	case handOver:
		d.conn = nil
		d.over = true
		return e.replacePeer(p)
	}
	return nil
}

// dialRouter makes one attempt, unless another process has a session with the router: then the attempt would be
// refused, or end that session.
func (e *engine) dialRouter() {
	d := &e.dialling
	d.last = time.Now()
	d.occupied = netip.Addr{}
	time.AfterFunc(dialInterval, e.notes.wake.Kick)
	if from, isOccupied := occupied(e.settings); isOccupied {
		d.occupied = from
		return
	}

	d.count++
	d.conn = nil
	time.AfterFunc(openTime, e.notes.wake.Kick)
	conn, err := connect(e.settings)
	if err != nil {
		return
	}
	d.conn = &recordingConn{TCPConn: conn.(*net.TCPConn), notes: e.notes}
	passConn(e.gobgp, d.conn)
}

// replacePeer replaces GoBGP's peer, and keeps its counters. GoBGP dials the new peer if the engine dials no more.
func (e *engine) replacePeer(p *api.Peer) error {
	d := &e.dialling
	d.counters = d.counters.Plus(lb.SessionCounters{}, countersOf(p))
	request := &api.DeletePeerRequest{Address: e.settings.Address.String()}
	if err := e.gobgp.DeletePeer(context.Background(), request); err != nil {
		return fmt.Errorf("replace the peer: %w", err)
	}
	return e.addPeer(apiPeer(e.settings, !d.over))
}

// connect dials a router with the socket options that GoBGP would set.
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

// setOptions sets the TTLs and the password of a socket.
func setOptions(fd int, s lb.Peer) error {
	err := setTTL(fd, s)
	if s.Password != "" {
		err = errors.Join(err, setPassword(fd, s))
	}
	return err
}

// setTTL sets the TTLs of a socket. The TTL is 1 for a router of another AS that is one hop away.
func setTTL(fd int, s lb.Peer) error {
	level, ttl, minTTL := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_MINTTL
	if s.Address.Is6() {
		level, ttl, minTTL = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_MINHOPCOUNT
	}

	switch {
	case s.MinTTL != 0:
		return errors.Join(
			unix.SetsockoptInt(fd, level, ttl, maxTTL),
			unix.SetsockoptInt(fd, level, minTTL, int(s.MinTTL)),
		)
	case s.PeerASN == 0 || s.PeerASN == s.LocalASN:
		return nil
	case s.MultiHop:
		return unix.SetsockoptInt(fd, level, ttl, maxTTL)
	}
	return unix.SetsockoptInt(fd, level, ttl, 1)
}

// setPassword sets the key of the socket's TCP MD5 signatures (RFC 2385).
func setPassword(fd int, s lb.Peer) error {
	var key unix.TCPMD5Sig
	if s.Address.Is6() {
		key.Addr.Family = unix.AF_INET6
		copy(key.Addr.Data[6:], s.Address.AsSlice()) // sin6_addr of struct sockaddr_in6
	} else {
		key.Addr.Family = unix.AF_INET
		copy(key.Addr.Data[2:], s.Address.AsSlice()) // sin_addr of struct sockaddr_in
	}

	key.Keylen = uint16(copy(key.Key[:], s.Password))
	return unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, &key)
}
