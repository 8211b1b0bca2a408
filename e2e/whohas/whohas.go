package whohas

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Config is the configuration of Run.
type Config struct {
	// Link is the name of the link.
	Link string
	// Targets are the requested addresses; without any Run only listens.
	Targets []netip.Addr
	// From are the sender addresses of requests, one of each family, which no host may have:
	// the kernel of the host must not learn from answers to requests of this package.
	From []netip.Addr
	// Every is the time between two requests for each target.
	Every time.Duration
}

// receiveBuffer of the socket, in bytes.
const receiveBuffer = 16 << 20

// own is the sender's MAC.
var own = net.HardwareAddr{2, 0, 0, 0, 0xff, 1}

// Run sends requests and passes every received claim to report, until ctx ends.
func Run(ctx context.Context, c Config, report func(Claim)) error {
	fd, err := c.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)

	questions, err := c.questions()
	if err != nil {
		return err
	}

	buf := make([]byte, 1<<16)
	control := make([]byte, unix.CmsgSpace(int(unsafe.Sizeof(unix.Timespec{}))))
	var asked time.Time
	for ctx.Err() == nil {
		if t := time.Now(); t.Sub(asked) >= c.Every {
			asked = t
			if err := ask(fd, questions); err != nil {
				return err
			}
		}

		n, controlled, _, _, err := unix.Recvmsg(fd, buf, control, 0)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN):
			continue
		case err != nil:
			return fmt.Errorf("listen: %w", err)
		}

		address, mac, ok := read(buf[:n])
		if !ok || slices.Equal(mac, own) {
			continue
		}
		at, err := arrival(control[:controlled])
		if err != nil {
			return err
		}
		report(Claim{At: at, Address: address, MAC: mac.String()})
	}
	return nil
}

// open opens a packet socket on the link, which hears all frames there. The caller closes it.
func (c Config) open() (int, error) {
	link, err := net.InterfaceByName(c.Link)
	if err != nil {
		return 0, fmt.Errorf("find link: %w", err)
	}

	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open packet socket: %w", err)
	}
	if err := c.prepare(fd, link.Index); err != nil {
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

// prepare binds a packet socket to a link, and sets its options.
func (c Config) prepare(fd, link int) error {
	all := uint16(unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link}); err != nil {
		return fmt.Errorf("bind packet socket: %w", err)
	}
	// Answers to a MAC that is not the link's.
	promiscuous := &unix.PacketMreq{Ifindex: int32(link), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, promiscuous); err != nil {
		return fmt.Errorf("make link promiscuous: %w", err)
	}
	// Short reads, so that the loop notices the end of ctx and sends requests in time.
	wait := unix.NsecToTimeval(int64(min(c.Every, 100*time.Millisecond) / 4))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return fmt.Errorf("set timeout: %w", err)
	}
	// The move of a thousand addresses is a burst of thousands of frames. A busy process must not lose claims or record
	// them late.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer); err != nil {
		return fmt.Errorf("set receive buffer: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return fmt.Errorf("enable receive timestamps: %w", err)
	}
	return nil
}

// ask sends the requests. On a link that is down nothing can be sent; it may come up again.
func ask(fd int, questions [][]byte) error {
	for _, q := range questions {
		_, err := unix.Write(fd, q)
		if err != nil && !errors.Is(err, unix.ENETDOWN) && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("send request: %w", err)
		}
	}
	return nil
}

// arrival reads when the kernel received a frame.
func arrival(control []byte) (time.Time, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return time.Time{}, fmt.Errorf("read time of arrival: %w", err)
	}
	for _, m := range messages {
		var at unix.Timespec
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS {
			if _, err := binary.Decode(m.Data, binary.NativeEndian, &at); err != nil {
				return time.Time{}, fmt.Errorf("read time of arrival: %w", err)
			}
			return time.Unix(at.Unix()), nil
		}
	}
	return time.Time{}, errors.New("a frame has no time of arrival")
}

func (c Config) questions() ([][]byte, error) {
	var out [][]byte
	for _, t := range c.Targets {
		i := slices.IndexFunc(c.From, func(a netip.Addr) bool { return a.Is4() == t.Is4() })
		if i < 0 {
			return nil, fmt.Errorf("no sender address for requests for %s", t)
		}
		out = append(out, question(own, c.From[i], t))
	}
	return out, nil
}

// window is the resolution of Overlap: as long as several requests.
const window = 50 * time.Millisecond

// Overlap returns how long more than one MAC claimed an address: the number of windows with
// claims of several MACs, times their length. A clean move takes one window at most.
func Overlap(claims []Claim, address netip.Addr) time.Duration {
	macs := map[int64]string{}
	twice := map[int64]bool{}
	for _, c := range claims {
		w := c.At.UnixNano() / int64(window)
		if c.Address != address {
			continue
		}
		if before, seen := macs[w]; seen && before != c.MAC {
			twice[w] = true
		}
		macs[w] = c.MAC
	}
	return time.Duration(len(twice)) * window
}

// First returns the time of the first claim of each address, after a given time, by another MAC than before it.
func First(claims []Claim, after time.Time) map[netip.Addr]time.Time {
	owner, out := map[netip.Addr]string{}, map[netip.Addr]time.Time{}
	for _, c := range claims {
		_, moved := out[c.Address]
		switch {
		case !c.At.After(after):
			owner[c.Address] = c.MAC
		case !moved && owner[c.Address] != c.MAC:
			out[c.Address] = c.At
		}
	}
	return out
}
