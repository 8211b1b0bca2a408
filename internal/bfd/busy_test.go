package bfd

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// busyTime is how long all cores are busy: 10 s, or BUSY. A flag would not reach the process in the namespace.
func busyTime(t *testing.T) time.Duration {
	t.Helper()
	text := cmp.Or(os.Getenv("BUSY"), "10s")
	d, err := time.ParseDuration(text)
	must(t, err)
	return d
}

// TestBusy: with real-time priority our packets stay regular on the wire while all cores are busy: 50 ms apart, never
// 100, and a session between two speakers does not fall after three of them. The times are those at which the
// neighbor's kernel received them.
func TestBusy(t *testing.T) {
	if testing.Short() {
		t.Skip("keeps all cores busy for 10 s")
	}
	nstest.Run(t, func(t *testing.T) {
		_, ns, _ := connect(t)
		ours, theirs := startSpeaker(t, "192.0.2.1"), startSpeaker(t, "192.0.2.2", "nsenter", "--net="+ns.Path(), "--")
		settings := func(p *Peer) { p.Transmit, p.Receive, p.Multiplier = 50*time.Millisecond, 50*time.Millisecond, 3 }
		mirror := only("v4", settings)
		mirror[0].Address = netip.MustParseAddr("192.0.2.1")
		for s, peers := range map[*speaker][]Peer{ours: only("v4", settings), theirs: mirror} {
			nstest.Until(t, patience, "the process runs", func() bool { _, err := s.heartbeats.Process(); return err == nil })
			s.Set(peers)
		}
		for _, s := range []*speaker{ours, theirs} {
			s.until("the session sends each 50 ms", func() bool {
				return s.status("v4").State == Up && s.status("v4").Transmit == 50*time.Millisecond
			})
			if gaugeOf(t, s.heartbeats, "holdfast_heartbeat_realtime") == 0 {
				t.Skip("no real-time priority here")
			}
		}
		for range 2 * runtime.NumCPU() {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
			must(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		}
		wanted := busyTime(t)
		times := capture(t, ns, wanted)
		longest := time.Duration(0)
		for i := range times[1:] {
			longest = max(longest, times[i+1]-times[i])
		}
		minPackets := int(19 * wanted / time.Second)
		t.Logf("%d packets in %v, the longest gap %v", len(times), wanted, longest)
		if len(times) < minPackets || longest > 100*time.Millisecond {
			t.Errorf("%d packets, the longest gap %v; want %d and 100ms at most", len(times), longest, minPackets)
		}
		for _, s := range []*speaker{ours, theirs} {
			if got := s.status("v4"); got.State != Up || got.Ups != 1 {
				t.Errorf("the session is %v, and came up %d times", got.State, got.Ups)
			}
		}
	})
}

// capture returns when the packets of 192.0.2.1 arrived in a namespace.
func capture(t *testing.T, ns *nstest.NS, d time.Duration) (times []time.Duration) {
	t.Helper()
	var fd int
	ns.Do(func() {
		var err error
		ipv4 := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(ipv4)); err != nil {
			t.Fatal(err)
		}
	})
	defer unix.Close(fd)
	second := unix.Timeval{Sec: 1}
	err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &second))
	must(t, err)
	source := netip.MustParseAddr("192.0.2.1").As4()
	var b, oob [256]byte
	for end := time.Now().Add(d); time.Now().Before(end); {
		n, size, _, _, err := unix.Recvmsg(fd, b[:], oob[:], 0)
		messages, failed := unix.ParseSocketControlMessage(oob[:size])
		const port = 20 + 2 // of the destination, behind an IPv4 header without options
		if err != nil || failed != nil || n < port+2 || [4]byte(b[12:16]) != source ||
			binary.BigEndian.Uint16(b[port:]) != singleHopPort {
			continue
		}
		for _, m := range messages {
			if m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= int(unsafe.Sizeof(unix.Timespec{})) {
				at := (*unix.Timespec)(unsafe.Pointer(&m.Data[0]))
				times = append(times, time.Duration(at.Nano()))
			}
		}
	}
	return times
}
