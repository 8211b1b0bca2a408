package layer2

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// groupsPerSocket stays below the limit of net.core.optmem_max for one socket on any
// kernel (at least 20 KiB, some 80 octets for each membership).
const groupsPerSocket = 200

// groupSockets are sockets that only hold memberships: no datagram ever reaches them.
type groupSockets struct {
	// udp are the sockets, with the number of groups of each.
	udp    map[int]int
	member map[membership]int
}

func (m membership) request() *unix.IPv6Mreq {
	return &unix.IPv6Mreq{Multiaddr: m.group.As16(), Interface: uint32(m.index)}
}

// join implements kernel.
func (s *groupSockets) join(m membership) error {
	fd, err := s.free()
	if err != nil {
		return err
	}

	if err := unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, m.request()); err != nil {
		return fmt.Errorf("join group: %w", err)
	}

	s.udp[fd]++
	s.member[m] = fd
	return nil
}

// free returns a socket that can hold one more group.
func (s *groupSockets) free() (int, error) {
	for fd, n := range s.udp {
		if n < groupsPerSocket {
			return fd, nil
		}
	}

	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open UDP socket: %w", err)
	}

	if s.udp == nil {
		s.udp, s.member = make(map[int]int), make(map[membership]int)
	}

	s.udp[fd] = 0
	return fd, nil
}

// leave implements kernel. If the link is gone, so are its groups.
func (s *groupSockets) leave(m membership) {
	fd := s.member[m]
	delete(s.member, m)
	_ = unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_LEAVE_GROUP, m.request())
	if s.udp[fd]--; s.udp[fd] == 0 {
		delete(s.udp, fd)
		_ = unix.Close(fd)
	}
}

// close implements kernel. Closing the sockets ends the memberships.
func (s *groupSockets) close() {
	for fd := range s.udp {
		unix.Close(fd)
	}
	*s = groupSockets{}
}

// readIGMP6 returns this host's IPv6 group memberships.
func readIGMP6() (map[membership]bool, error) {
	b, err := os.ReadFile("/proc/thread-self/net/igmp6")
	if err != nil {
		return nil, fmt.Errorf("read multicast groups: %w", err)
	}
	return parseIGMP6(b), nil
}

// parseIGMP6 reads lines of link index, link name, group in hexadecimal, and more.
func parseIGMP6(b []byte) map[membership]bool {
	members := make(map[membership]bool)
	for line := range bytes.Lines(b) {
		fields := bytes.Fields(line)
		if len(fields) < 3 {
			continue
		}

		index, err := strconv.Atoi(string(fields[0]))
		group, failed := hex.DecodeString(string(fields[2]))
		if err == nil && failed == nil && len(group) == 16 {
			members[membership{index, netip.AddrFrom16([16]byte(group))}] = true
		}
	}

	return members
}
