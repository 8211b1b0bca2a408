package probe

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
)

// sctpSource is the source port of INIT chunks. No other program of the lab uses SCTP.
const sctpSource = 50000

// newInit returns an SCTP packet with one INIT chunk (RFC 9260 sections 3.1 and 3.3.2).
func newInit(port uint16) []byte {
	b := make([]byte, 12+20)
	binary.BigEndian.PutUint16(b[0:], sctpSource)
	binary.BigEndian.PutUint16(b[2:], port)
	// The verification tag, at 4, is 0 with an INIT; the checksum, at 8, follows.
	chunk := b[12:]
	chunk[0] = 1 // INIT
	binary.BigEndian.PutUint16(chunk[2:], uint16(len(chunk)))
	binary.BigEndian.PutUint32(chunk[4:], 0x48f0fa57)  // initiate tag
	binary.BigEndian.PutUint32(chunk[8:], 65536)       // window
	binary.BigEndian.PutUint16(chunk[12:], 10)         // outbound streams
	binary.BigEndian.PutUint16(chunk[14:], 10)         // inbound streams
	binary.BigEndian.PutUint32(chunk[16:], 0x01020304) // initial TSN
	// RFC 9260 appendix A: CRC32c, sent with the least significant byte first.
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// sendInit sends an INIT from a raw socket, since the kernel may lack SCTP.
func sendInit(target string) error {
	to, err := netip.ParseAddrPort(target)
	if err != nil {
		return fmt.Errorf("read target: %w", err)
	}
	network := "ip4:132"
	if to.Addr().Is6() {
		network = "ip6:132"
	}
	conn, err := net.ListenPacket(network, "")
	if err != nil {
		return fmt.Errorf("open raw socket: %w", err)
	}
	defer conn.Close()
	if _, err := conn.WriteTo(newInit(to.Port()), &net.IPAddr{IP: to.Addr().AsSlice()}); err != nil {
		return fmt.Errorf("send INIT: %w", err)
	}
	return nil
}
