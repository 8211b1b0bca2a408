package bfd

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/rt"
)

const (
	// The ports that neighbors send to (RFC 5881 section 4, RFC 5883 section 5).
	singleHopPort, multiHopPort = 3784, 4784
	// Packets come from a port of these, another one for each session (RFC 5881 section 4).
	firstPort, lastPort = 49152, 65535
)

// openUDP opens a socket with options that sends with the TTL of neighbors.
func openUDP(is6 bool, options ...rt.Option) (fd int, err error) {
	ttl := rt.Option{Level: unix.IPPROTO_IP, Name: unix.IP_TTL, Value: singleHopTTL}
	if is6 {
		ttl = rt.Option{Level: unix.IPPROTO_IPV6, Name: unix.IPV6_UNICAST_HOPS, Value: singleHopTTL}
	}
	return rt.UDP(is6, append(options, ttl)...)
}

// sender is the socket that one session sends from.
type sender struct {
	fd   int
	port int
	to   unix.Sockaddr
	// link is the index of the interface that the socket is bound to, or 0.
	link int
	// failing: the last packet could not be sent.
	failing bool
}

// openSender binds to a port that no other session has; start is where the search begins.
func openSender(p Peer, taken map[int]bool, start uint64) (*sender, error) {
	fd, err := openUDP(p.Address.Is6())
	if err != nil {
		return nil, err
	}
	s := &sender{fd: fd}
	if p.Interface != "" {
		s.link = p.Links[0]
		if err := unix.BindToDevice(fd, p.Interface); err != nil {
			s.close()
			return nil, fmt.Errorf("use interface %s: %w", p.Interface, err)
		}
	}
	local := p.Source
	if !local.IsValid() {
		local = unspecified(p.Address.Is6())
	}
	const ports = lastPort - firstPort + 1
	for i := range uint64(ports) {
		s.port = firstPort + int((start+i)%ports)
		if taken[s.port] {
			continue
		}
		err = unix.Bind(fd, rt.Sockaddr(netip.AddrPortFrom(local, uint16(s.port)), s.link))
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("send from %s: %w", local, err)
	}
	s.to = rt.Sockaddr(netip.AddrPortFrom(p.Address, kindOf(p).port()), s.link)
	return s, nil
}

func (s *sender) close() { _ = unix.Close(s.fd) }

func unspecified(is6 bool) netip.Addr {
	if is6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}
