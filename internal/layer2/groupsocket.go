package layer2

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// groupsPerSocket stays below the limit of net.core.optmem_max for one socket on any
// kernel (at least 20 KiB, some 80 octets for each membership).
const groupsPerSocket = 200

// groupSockets are sockets that only hold memberships: no frame and no datagram
// ever reaches them.
type groupSockets struct {
	// packet is the packet socket, 0 before it is opened.
	packet int
	// udp are the ordinary sockets, with the number of groups of each.
	udp    map[int]int
	member map[membership]int
}

// receive implements kernel.
func (s *groupSockets) receive(m membership, join bool) error {
	if s.packet == 0 {
		// Protocol 0 receives nothing (packet(7)).
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open packet socket: %w", err)
		}
		s.packet = fd
	}
	mac := groupMAC(m.group)
	mreq := unix.PacketMreq{Ifindex: int32(m.index), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(mac))}
	copy(mreq.Address[:], mac[:])
	option, verb := unix.PACKET_ADD_MEMBERSHIP, "receive"
	if !join {
		option, verb = unix.PACKET_DROP_MEMBERSHIP, "stop receiving"
	}
	if err := unix.SetsockoptPacketMreq(s.packet, unix.SOL_PACKET, option, &mreq); err != nil {
		return fmt.Errorf("%s group: %w", verb, err)
	}
	return nil
}

// report implements kernel.
func (s *groupSockets) report(m membership, join bool) error {
	mreq := unix.IPv6Mreq{Multiaddr: m.group.As16(), Interface: uint32(m.index)}
	if !join {
		return s.leave(m, &mreq)
	}
	fd, err := s.free()
	if err != nil {
		return err
	}
	if err := unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &mreq); err != nil {
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

func (s *groupSockets) leave(m membership, mreq *unix.IPv6Mreq) error {
	fd, ok := s.member[m]
	if !ok {
		return nil
	}
	delete(s.member, m)
	s.udp[fd]--
	err := unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_LEAVE_GROUP, mreq)
	if s.udp[fd] == 0 {
		delete(s.udp, fd)
		err = errors.Join(err, unix.Close(fd))
	}
	if err != nil {
		return fmt.Errorf("leave group: %w", err)
	}
	return nil
}

// close implements kernel. Closing the sockets ends the memberships.
func (s *groupSockets) close() {
	if s.packet != 0 {
		unix.Close(s.packet)
	}
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
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) < 3 || len(fields[2]) != 32 {
			continue
		}
		index, err := strconv.Atoi(string(fields[0]))
		if err != nil {
			continue
		}
		var group [16]byte
		if _, err := hex.Decode(group[:], fields[2]); err != nil {
			continue
		}
		members[membership{index, netip.AddrFrom16(group)}] = true
	}
	return members
}
