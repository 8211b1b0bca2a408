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

// maxBatch is how many datagrams one system call receives or sends at most.
const maxBatch = 16

// batchSocket is a socket with memory for the datagrams of one system call: x/sys would allocate some for each
// packet.
type batchSocket struct {
	fd      int
	headers [maxBatch]struct {
		unix.Msghdr
		n uint32
	}
	buffers   [maxBatch]unix.Iovec
	addresses [maxBatch]unix.RawSockaddrAny
	controls  [maxBatch][128]byte
	data      [maxBatch][maxDatagram]byte
	// queued is how many datagrams wait to be sent.
	queued int
}

func newBatchSocket() *batchSocket {
	b := &batchSocket{fd: -1}
	for i := range b.headers {
		b.buffers[i].Base = &b.data[i][0]
		b.headers[i].Iov = &b.buffers[i]
		b.headers[i].SetIovlen(1)
	}

	return b
}

// call has the kernel receive or send n datagrams from the first one on. It returns how many the kernel did.
func (b *batchSocket) call(number uintptr, first, n, flags int) (int, unix.Errno) {
	done, _, err := unix.RawSyscall6(
		number,
		uintptr(b.fd),
		uintptr(unsafe.Pointer(&b.headers[first])),
		uintptr(n),
		uintptr(flags|unix.MSG_DONTWAIT),
		0,
		0,
	)

	return int(done), err
}

// receive receives up to limit datagrams that wait, and returns how many. They are valid until the next call.
func (b *batchSocket) receive(limit, flags int) int {
	limit = min(limit, maxBatch)
	for i := range limit {
		h := &b.headers[i]
		h.Name = (*byte)(unsafe.Pointer(&b.addresses[i]))
		h.Namelen = unix.SizeofSockaddrAny
		h.Control = &b.controls[i][0]
		h.SetControllen(len(b.controls[i]))
		h.n = 0
		b.buffers[i].SetLen(maxDatagram)
	}

	n, err := b.call(unix.SYS_RECVMMSG, 0, limit, flags)
	switch err {
	case 0:
		return n
	case unix.EAGAIN:
		return 0
	}
	b.headers[0].SetControllen(0)

	return 1 // a failure counts as an empty datagram
}

func (b *batchSocket) datagram(i int) []byte { return b.data[i][:b.headers[i].n] }
func (b *batchSocket) control(i int) []byte  { return b.controls[i][:b.headers[i].Controllen] }

// receivedAt returns when a datagram came, by the wall clock, at a socket with SO_TIMESTAMPNS.
func (b *batchSocket) receivedAt(i int) time.Duration {
	control := b.control(i)
	if len(control) < unix.CmsgLen(int(unsafe.Sizeof(unix.Timespec{}))) { // no other kind was asked for
		return 0
	}

	return time.Duration((*unix.Timespec)(unsafe.Pointer(&control[unix.CmsgLen(0)])).Nano())
}

// sender returns the address of a datagram's sender, or the destination of a packet that was refused.
func (b *batchSocket) sender(i int) netip.Addr {
	p := &b.addresses[i]
	switch p.Addr.Family {
	case unix.AF_INET:
		return netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(p)).Addr)
	case unix.AF_INET6:
		return netip.AddrFrom16((*unix.RawSockaddrInet6)(unsafe.Pointer(p)).Addr)
	}

	return netip.Addr{}
}

// rawAddress returns an address and port as the kernel reads them.
func rawAddress(a netip.AddrPort) []byte {
	family, size, flow := uint16(unix.AF_INET), unix.SizeofSockaddrInet4, []byte(nil)
	if a.Addr().Is6() {
		family, size, flow = unix.AF_INET6, unix.SizeofSockaddrInet6, make([]byte, 4)
	}

	b := binary.NativeEndian.AppendUint16(make([]byte, 0, size), family)
	b = binary.BigEndian.AppendUint16(b, a.Port())
	b = append(b, flow...)

	return append(b, a.Addr().AsSlice()...)[:size]
}

// queue adds a packet to the datagrams to send, and sends them if the batch is full.
func (b *batchSocket) queue(s *rt.Seal, p *detect.Packet, to []byte) {
	datagram := sealPacket(s, b.data[b.queued][:0], p)
	h := &b.headers[b.queued]
	h.Name, h.Namelen = &to[0], uint32(len(to))
	b.buffers[b.queued].SetLen(len(datagram))
	b.queued++
	if b.queued == maxBatch {
		b.flush()
	}
}

// flush sends the queued datagrams. It reports no error: the detector notices whether they arrive.
func (b *batchSocket) flush() {
	for first, failed := 0, false; first < b.queued; {
		n, err := b.call(unix.SYS_SENDMMSG, first, b.queued-first, 0)
		// A failure may be the error of an earlier packet to another address: the first one is retried.
		failed = err != 0 && err != unix.EAGAIN && !failed
		if !failed {
			first += max(n, 1)
		}
	}
	b.queued = 0
}
