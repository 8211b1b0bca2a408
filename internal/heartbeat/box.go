package heartbeat

import (
	"encoding/binary"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

// batch is how many datagrams one system call takes or sends at most.
const batch = 16

// box is a socket with memory for what one system call takes from it or sends by it: x/sys would allocate some for each
// packet.
type box struct {
	fd    int
	heads [batch]struct {
		unix.Msghdr
		n uint32
	}
	parts [batch]unix.Iovec
	peers [batch]unix.RawSockaddrAny
	oob   [batch][128]byte
	data  [batch][maxDatagram]byte
	// filled is how many wait to be sent.
	filled int
}

func newBox() *box {
	b := &box{fd: -1}
	for i := range b.heads {
		b.parts[i].Base = &b.data[i][0]
		b.heads[i].Iov = &b.parts[i]
		b.heads[i].SetIovlen(1)
	}
	return b
}

// call has the kernel take or send the datagrams from the first one on, and returns how many it did.
func (b *box) call(number uintptr, first, n, flags int) (int, unix.Errno) {
	done, _, err := unix.RawSyscall6(
		number,
		uintptr(b.fd),
		uintptr(unsafe.Pointer(&b.heads[first])),
		uintptr(n),
		uintptr(flags|unix.MSG_DONTWAIT),
		0,
		0,
	)
	return int(done), err
}

// take takes what waits, so many at most, and reports how many. Each is valid until the next call.
func (b *box) take(most, flags int) int {
	most = min(most, batch)
	for i := range most {
		h := &b.heads[i]
		h.Name, h.Namelen, h.Control, h.n = (*byte)(
			unsafe.Pointer(&b.peers[i]),
		), unix.SizeofSockaddrAny, &b.oob[i][0], 0
		h.SetControllen(len(b.oob[i]))
		b.parts[i].SetLen(maxDatagram)
	}
	n, err := b.call(unix.SYS_RECVMMSG, 0, most, flags)
	switch err {
	case 0:
		return n
	case unix.EAGAIN:
		return 0
	}
	b.heads[0].SetControllen(0)
	return 1 // a failure is something that was read: an empty datagram
}

func (b *box) datagram(i int) []byte { return b.data[i][:b.heads[i].n] }
func (b *box) control(i int) []byte  { return b.oob[i][:b.heads[i].Controllen] }

// at is when the datagram came, by the wall clock, at a socket that dates.
func (b *box) at(i int) time.Duration {
	control := b.control(i)
	if len(control) < unix.CmsgLen(int(unsafe.Sizeof(unix.Timespec{}))) { // the only kind that was asked for
		return 0
	}
	return time.Duration((*unix.Timespec)(unsafe.Pointer(&control[unix.CmsgLen(0)])).Nano())
}

// from is the address of its sender, or of whom it was sent to where it is a refusal.
func (b *box) from(i int) netip.Addr {
	switch p := &b.peers[i]; p.Addr.Family {
	case unix.AF_INET:
		return netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(p)).Addr)
	case unix.AF_INET6:
		return netip.AddrFrom16((*unix.RawSockaddrInet6)(unsafe.Pointer(p)).Addr)
	}
	return netip.Addr{}
}

// sockaddr is an address and port as the kernel reads them.
func sockaddr(a netip.AddrPort) []byte {
	family, size, flow := uint16(unix.AF_INET), unix.SizeofSockaddrInet4, []byte(nil)
	if a.Addr().Is6() {
		family, size, flow = unix.AF_INET6, unix.SizeofSockaddrInet6, make([]byte, 4)
	}
	b := binary.BigEndian.AppendUint16(binary.NativeEndian.AppendUint16(make([]byte, 0, size), family), a.Port())
	return append(append(b, flow...), a.Addr().AsSlice()...)[:size]
}

// put adds a packet to what is sent.
func (b *box) put(s *rt.Seal, p *detect.Packet, to []byte) {
	h := &b.heads[b.filled]
	h.Name, h.Namelen = &to[0], uint32(len(to))
	b.parts[b.filled].SetLen(len(closed(s, b.data[b.filled][:0], p)))
	if b.filled++; b.filled == batch {
		b.send()
	}
}

// send sends what was added. Whether it arrives shows elsewhere.
func (b *box) send() {
	for first, failed := 0, false; first < b.filled; {
		n, err := b.call(unix.SYS_SENDMMSG, first, b.filled-first, 0)
		// A failure may be the error of an earlier packet, to another address.
		if failed = err != 0 && err != unix.EAGAIN && !failed; !failed {
			first += max(n, 1)
		}
	}
	b.filled = 0
}
