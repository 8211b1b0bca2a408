package bfd

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/net/bpf"
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
	// receiveBuffer holds what arrives while the thread does not run.
	receiveBuffer = 1 << 18
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
	if err := attach(fd, []bpf.Instruction{bpf.RetConstant{Val: 0}}); err != nil {
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

// kind of a socket that receives: there is one for all sessions of a family and a port.
type kind struct{ is6, multiHop bool }

func kindOf(p Peer) kind { return kind{p.Address.Is6(), p.MultiHop} }

func (k kind) port() int {
	if k.multiHop {
		return multiHopPort
	}
	return singleHopPort
}

// receiver is such a socket.
type receiver struct {
	kind
	fd int
	// reads counts datagrams since the thread's window began.
	reads int
	// Memory that the kernel writes to: x/sys would allocate some for each packet.
	head unix.Msghdr
	data unix.Iovec
	from unix.RawSockaddrAny
	oob  [256]byte
	in   [packetLen + 64]byte
}

// openReceiver listens at all addresses of the node.
func openReceiver(k kind) (*receiver, error) {
	options := []option{
		{unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer},
		{unix.IPPROTO_IP, unix.IP_RECVTTL, 1}, {unix.IPPROTO_IP, unix.IP_PKTINFO, 1},
	}
	if k.is6 {
		options = append(options[:1], option{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1}, option{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1})
	}
	fd, err := openUDP(k.is6, options...)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, sockaddr(unspecified(k.is6), k.port(), 0)); err != nil {
		_ = unix.Close(fd)
		if errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("another program on the node uses UDP port %d", k.port())
		}
		return nil, fmt.Errorf("bind UDP port %d: %w", k.port(), err)
	}
	return &receiver{kind: k, fd: fd}, nil
}

// read takes what waits next, and reports whether there was anything. The octets are valid until the next call; there
// are none for the error of an earlier packet.
func (r *receiver) read() (b []byte, o origin, ok bool) {
	r.data.Base = &r.in[0]
	r.data.SetLen(len(r.in))
	r.head = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&r.from)), Namelen: unix.SizeofSockaddrAny, Iov: &r.data, Control: &r.oob[0]}
	r.head.SetIovlen(1)
	r.head.SetControllen(len(r.oob))
	n, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(r.fd), uintptr(unsafe.Pointer(&r.head)), unix.MSG_DONTWAIT)
	switch {
	case errno == unix.EAGAIN:
		return nil, origin{}, false
	case errno != 0:
		return nil, origin{}, true
	}
	o = origin{from: r.sender(), multiHop: r.multiHop}
	r.control(r.oob[:min(uint64(r.head.Controllen), uint64(len(r.oob)))], &o)
	return r.in[:n], o, true
}

// sender is the address that the kernel wrote to from.
func (r *receiver) sender() netip.Addr {
	switch r.from.Addr.Family {
	case unix.AF_INET:
		return netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&r.from)).Addr)
	case unix.AF_INET6:
		return netip.AddrFrom16((*unix.RawSockaddrInet6)(unsafe.Pointer(&r.from)).Addr)
	}
	return netip.Addr{}
}

// control reads the TTL and the link from control messages (cmsg(3)), without allocating memory.
func (r *receiver) control(b []byte, o *origin) {
	const headLen = unix.SizeofCmsghdr
	for len(b) >= headLen {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		size := int(h.Len)
		if size < headLen || size > len(b) {
			return
		}
		data := b[headLen:size]
		switch {
		case len(data) < 4:
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TTL, h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT:
			o.ttl = uint8(*(*int32)(unsafe.Pointer(&data[0])))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO:
			o.link = int(*(*int32)(unsafe.Pointer(&data[0])))
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			o.link = int((*unix.Inet6Pktinfo)(unsafe.Pointer(&data[0])).Ifindex)
		}
		b = b[min(unix.CmsgSpace(size-headLen), len(b)):]
	}
}

// sender is the socket that one session sends from.
type sender struct {
	fd   int
	port int
	to   unix.Sockaddr
	// link is the index of the session's interface, or 0.
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
		if s.link, err = bindToLink(fd, p.Interface); err != nil {
			s.close()
			return nil, err
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

func bindToLink(fd int, name string) (int, error) {
	index, err := indexOf(fd, name)
	if err != nil {
		return 0, err
	}
	if err := unix.BindToDevice(fd, name); err != nil {
		return 0, fmt.Errorf("use interface %s: %w", name, err)
	}
	return index, nil
}

// indexOf asks the kernel for the index of an interface; any socket will do.
func indexOf(fd int, name string) (int, error) {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return 0, fmt.Errorf("%q is no name of an interface", name)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request); err != nil {
		return 0, fmt.Errorf("there is no interface %s: %w", name, err)
	}
	return int(request.Uint32()), nil
}

// onLink reports whether the interface is still the one that the socket is bound to: another one may have taken its name.
func (s *sender) onLink(name string) bool {
	if name == "" {
		return true
	}
	index, err := indexOf(s.fd, name)
	return err == nil && index == s.link
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
