package bfd

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	// The ports that neighbors send to (RFC 5881 section 4, RFC 5883 section 5).
	singleHopPort, multiHopPort = 3784, 4784
	// Packets come from a port of these, another one for each session (RFC 5881 section 4).
	firstPort, lastPort = 49152, 65535
	// classSelector6 is the DSCP of network control (RFC 4594 section 3.1); socketPriority is the highest that needs no
	// capability (socket(7), SO_PRIORITY).
	classSelector6 = 48 << 2
	socketPriority = 6
)

type option struct{ level, name, value int }

// openUDP opens a UDP socket that the runtime's poller does not know, with options.
func openUDP(is6 bool, options ...option) (fd int, err error) {
	family := unix.AF_INET
	common := []option{
		{unix.SOL_SOCKET, unix.SO_PRIORITY, socketPriority},
		{unix.IPPROTO_IP, unix.IP_TOS, classSelector6},
		{unix.IPPROTO_IP, unix.IP_TTL, singleHopTTL},
	}
	if is6 {
		family = unix.AF_INET6
		common = []option{
			{unix.SOL_SOCKET, unix.SO_PRIORITY, socketPriority},
			{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_TCLASS, classSelector6},
			{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, singleHopTTL},
		}
	}
	if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP); err != nil {
		return -1, fmt.Errorf("open socket: %w", err)
	}
	// Nothing arrives before it is known who may send.
	if err := attach(fd, unix.SO_ATTACH_FILTER, dropAll); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	for _, o := range append(common, options...) {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			_ = unix.Close(fd)
			return -1, fmt.Errorf("set socket option %d of level %d: %w", o.name, o.level, err)
		}
	}
	return fd, nil
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
		scope := 0
		if local.IsLinkLocalUnicast() {
			scope = s.link
		}
		err = unix.Bind(fd, sockaddr(local, s.port, scope))
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("send from %s: %w", local, err)
	}
	s.to = sockaddr(p.Address, kindOf(p).port(), s.link)
	return s, nil
}

// send does not wait.
func (s *sender) send(b []byte) error {
	err := unix.Sendto(s.fd, b, unix.MSG_DONTWAIT, s.to)
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		// It may be the error of an earlier packet.
		err = unix.Sendto(s.fd, b, unix.MSG_DONTWAIT, s.to)
	}
	return err
}

func (s *sender) close() { _ = unix.Close(s.fd) }

func unspecified(is6 bool) netip.Addr {
	if is6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

func sockaddr(a netip.Addr, port, link int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: port, Addr: a.As4()}
	}
	s := &unix.SockaddrInet6{Port: port, Addr: a.As16()}
	if a.IsLinkLocalUnicast() {
		s.ZoneId = uint32(link)
	}
	return s
}
