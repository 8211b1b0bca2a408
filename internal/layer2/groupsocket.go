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

// groupSockets are UDP sockets that only hold memberships: no datagram ever reaches them.
type groupSockets struct {
	// sizes are the numbers of groups by socket, and sockets the socket of each membership.
	sizes   map[int]int
	sockets map[groupMembership]int
}

var _ groupKernel = (*groupSockets)(nil)

// request returns the membership as the kernel takes it.
func (m groupMembership) request() *unix.IPv6Mreq {
	return &unix.IPv6Mreq{Multiaddr: m.group.As16(), Interface: uint32(m.index)}
}

// join implements groupKernel.
func (s *groupSockets) join(m groupMembership) error {
	fd, err := s.free()
	if err != nil {
		return err
	}

	err = unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, m.request())
	if err != nil {
		return fmt.Errorf("join group: %w", err)
	}

	s.sizes[fd]++
	s.sockets[m] = fd
	return nil
}

// free returns a socket that can hold one more group.
func (s *groupSockets) free() (int, error) {
	for fd, n := range s.sizes {
		if n < groupsPerSocket {
			return fd, nil
		}
	}

	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open UDP socket: %w", err)
	}

	if s.sizes == nil {
		s.sizes = make(map[int]int)
		s.sockets = make(map[groupMembership]int)
	}

	s.sizes[fd] = 0
	return fd, nil
}

// leave implements groupKernel. If the link is gone, so are its groups.
func (s *groupSockets) leave(m groupMembership) {
	fd := s.sockets[m]
	delete(s.sockets, m)
	_ = unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_LEAVE_GROUP, m.request())

	s.sizes[fd]--
	if s.sizes[fd] == 0 {
		delete(s.sizes, fd)
		_ = unix.Close(fd)
	}
}

// close implements groupKernel. Closing the sockets ends the memberships.
func (s *groupSockets) close() {
	for fd := range s.sizes {
		unix.Close(fd)
	}

	*s = groupSockets{}
}

// memberships implements groupKernel: it returns this host's IPv6 group memberships.
func (*groupSockets) memberships() (map[groupMembership]bool, error) {
	b, err := os.ReadFile("/proc/thread-self/net/igmp6")
	if err != nil {
		return nil, fmt.Errorf("read multicast groups: %w", err)
	}
	return parseIGMP6(b), nil
}

// parseIGMP6 reads lines of link index, link name, group in hexadecimal, and more.
func parseIGMP6(b []byte) map[groupMembership]bool {
	members := make(map[groupMembership]bool)
	for line := range bytes.Lines(b) {
		fields := bytes.Fields(line)
		if len(fields) < 3 {
			continue
		}

		index, indexErr := strconv.Atoi(string(fields[0]))
		group, groupErr := hex.DecodeString(string(fields[2]))
		if indexErr != nil || groupErr != nil || len(group) != 16 {
			continue
		}

		members[groupMembership{index, netip.AddrFrom16([16]byte(group))}] = true
	}

	return members
}
