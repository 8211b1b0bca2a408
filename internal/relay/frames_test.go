package relay

import (
	"encoding/binary"
	"net"
	"slices"

	"golang.org/x/sys/unix"
)

// tcpACK is the flag of a segment that acknowledges.
const tcpACK = 0x10

// stray sends a TCP segment of no connection: an acknowledgement.
func (w *world) stray(to string) { w.segment(to, 50000, 0, tcpACK) }

// segment sends a TCP segment without data (RFC 9293 section 3.1).
func (w *world) segment(to string, from uint16, sequence uint32, flags byte) {
	w.t.Helper()
	const flagsAt = 13
	segment := make([]byte, 20)
	binary.BigEndian.PutUint16(segment[0:], from)
	binary.BigEndian.PutUint16(segment[2:], port)
	binary.BigEndian.PutUint32(segment[4:], sequence)
	segment[12], segment[flagsAt] = 5<<4, flags // five words
	pseudo := slices.Concat(addr(own[addr(to).Is4()]).AsSlice(), addr(to).AsSlice(), []byte{0, unix.IPPROTO_TCP, 0, byte(len(segment))})
	binary.BigEndian.PutUint16(segment[16:], checksum(append(pseudo, segment...)))
	w.raw("tcp", to, segment)
}

// tooBig tells a connection's other end that one of its packets did not fit (RFC 792, RFC 4443 section 3.2).
func (w *world) tooBig(c net.Conn) {
	w.t.Helper()
	from, to := c.RemoteAddr().(*net.TCPAddr), c.LocalAddr().(*net.TCPAddr)
	const mtu = 1300
	ports := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, uint16(from.Port)), uint16(to.Port))
	rest := append(ports, make([]byte, 16)...)
	if from4 := from.IP.To4(); from4 != nil {
		message := []byte{3, 4, 0, 0, 0, 0, mtu >> 8, mtu & 0xff}
		header := make([]byte, 20)
		header[0], header[8], header[9] = 4<<4|5, 64, unix.IPPROTO_TCP
		binary.BigEndian.PutUint16(header[2:], 1500)
		copy(header[12:], from4)
		copy(header[16:], to.IP.To4())
		binary.BigEndian.PutUint16(header[10:], checksum(header))
		message = append(append(message, header...), rest...)
		binary.BigEndian.PutUint16(message[2:], checksum(message))
		w.raw("icmp", vip4, message)
		return
	}
	message := []byte{2, 0, 0, 0, 0, 0, mtu >> 8, mtu & 0xff} // the kernel adds the checksum
	header := make([]byte, 40)
	header[0], header[6], header[7] = 6<<4, unix.IPPROTO_TCP, 64
	binary.BigEndian.PutUint16(header[4:], 1460)
	copy(header[8:], from.IP.To16())
	copy(header[24:], to.IP.To16())
	w.raw("ipv6-icmp", vip6, append(append(message, header...), rest...))
}

// raw sends what IP carries, from the client.
func (w *world) raw(protocol, to string, payload []byte) {
	w.t.Helper()
	network := "ip4:" + protocol
	if addr(to).Is6() {
		network = "ip6:" + protocol
	}
	w.client.Do(func() {
		c, err := net.ListenPacket(network, "")
		if err != nil {
			w.t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.WriteTo(payload, &net.IPAddr{IP: addr(to).AsSlice()}); err != nil {
			w.t.Fatal(err)
		}
	})
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
