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
	data      [maxBatch][maxPacket]byte
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
	flags |= unix.MSG_DONTWAIT
	headers := unsafe.Pointer(&b.headers[first])
	done, _, err := unix.RawSyscall6(
		number,
		uintptr(b.fd),
		uintptr(headers),
		uintptr(n),
		uintptr(flags),
		0,
		0,
	)

	return int(done), err
}

// receive receives up to limit datagrams that wait, and returns how many. They are valid until the next call.
func (b *batchSocket) receive(limit, flags int) int {
	limit = min(limit, maxBatch)
	for i := range limit {
		b.prepare(i)
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

// prepare empties the memory of a datagram to receive.
func (b *batchSocket) prepare(i int) {
	h := &b.headers[i]
	address := &b.addresses[i]
	h.Name = (*byte)(unsafe.Pointer(address))
	h.Namelen = unix.SizeofSockaddrAny
	control := b.controls[i][:]
	h.Control = unsafe.SliceData(control)
	h.SetControllen(len(control))
	h.n = 0
	b.buffers[i].SetLen(maxPacket)
}

func (b *batchSocket) datagram(i int) []byte {
	n := b.headers[i].n

	return b.data[i][:n]
}

func (b *batchSocket) control(i int) []byte {
	n := b.headers[i].Controllen

	return b.controls[i][:n]
}

// receivedAt returns when a datagram came, by the wall clock, at a socket with SO_TIMESTAMPNS.
func (b *batchSocket) receivedAt(i int) time.Duration {
	const size = int(unsafe.Sizeof(unix.Timespec{}))
	control := b.control(i)
	if len(control) < unix.CmsgLen(size) { // no other kind was asked for
		return 0
	}
	data := &control[unix.CmsgLen(0)]
	t := (*unix.Timespec)(unsafe.Pointer(data))

	return time.Duration(t.Nano())
}

// sender returns the address of a datagram's sender, or the destination of a packet that was refused.
func (b *batchSocket) sender(i int) netip.Addr {
	p := unsafe.Pointer(&b.addresses[i])
	switch b.addresses[i].Addr.Family {
	case unix.AF_INET:
		inet := (*unix.RawSockaddrInet4)(p)
		return netip.AddrFrom4(inet.Addr)
	case unix.AF_INET6:
		inet6 := (*unix.RawSockaddrInet6)(p)
		return netip.AddrFrom16(inet6.Addr)
	}

	return netip.Addr{}
}

// rawAddress returns an address and port as the kernel reads them.
func rawAddress(a netip.AddrPort) []byte {
	family := uint16(unix.AF_INET)
	size := unix.SizeofSockaddrInet4
	var flow []byte
	if a.Addr().Is6() {
		family = unix.AF_INET6
		size = unix.SizeofSockaddrInet6
		flow = make([]byte, 4)
	}

	b := make([]byte, 0, size)
	b = binary.NativeEndian.AppendUint16(b, family)
	b = binary.BigEndian.AppendUint16(b, a.Port())
	b = append(b, flow...)
	b = append(b, a.Addr().AsSlice()...)

	return b[:size]
}

// queue adds a packet to the datagrams to send, and sends them if the batch is full.
func (b *batchSocket) queue(s *rt.Seal, p *detect.Packet, to []byte) {
	b.add(sealPacket(s, b.next(), p), to)
}

// next returns the memory for the next datagram to send.
func (b *batchSocket) next() []byte { return b.data[b.queued][:0] }

// add adds what was written to next. A frame has no address beside the one in its header.
func (b *batchSocket) add(datagram, to []byte) {
	h := &b.headers[b.queued]
	h.Name = unsafe.SliceData(to)
	h.Namelen = uint32(len(to))
	h.Control = nil
	h.SetControllen(0)
	b.buffers[b.queued].SetLen(len(datagram))
	b.queued++
	if b.queued == maxBatch {
		b.flush()
	}
}

// flush sends the queued datagrams. It reports no error: the detector notices whether they arrive.
func (b *batchSocket) flush() {
	first := 0
	hasFailed := false
	for first < b.queued {
		n, err := b.call(unix.SYS_SENDMMSG, first, b.queued-first, 0)
		// A failure may be the error of an earlier packet to another address: the first one is retried.
		isFailure := err != 0 && err != unix.EAGAIN
		hasFailed = isFailure && !hasFailed
		if !hasFailed {
			first += max(n, 1)
		}
	}
	b.queued = 0
}
