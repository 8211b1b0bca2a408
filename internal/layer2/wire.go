package layer2

import (
	"fmt"
	"net"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"

	"github.com/holdfast-lb/holdfast/internal/link"
)

// writeTimeout bounds how long a link that takes no frames holds up the others.
const writeTimeout = 50 * time.Millisecond

// wire is a link's end of one protocol: whole Ethernet frames, one per call.
type wire interface {
	Read(frame []byte) (int, error)
	Write(frame []byte) (int, error)
	Close() error
}

// socket is the wire of a real link.
type socket struct{ *packet.Conn }

// listen opens a packet socket for one protocol on a link.
func listen(l link.Link, p protocol) (wire, error) {
	filter, err := bpf.Assemble(p.filter)
	if err != nil {
		return nil, fmt.Errorf("assemble %s filter: %w", p.family, err)
	}
	ifi := &net.Interface{Index: l.Index, Name: l.Name, HardwareAddr: l.MAC.HardwareAddr()}
	conn, err := packet.Listen(ifi, packet.Raw, int(p.etherType), &packet.Config{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("open %s socket on %s: %w", p.family, l.Name, err)
	}
	return socket{conn}, nil
}

// Read reads one frame.
func (s socket) Read(frame []byte) (int, error) {
	n, _, err := s.ReadFrom(frame)
	return n, err
}

// Write sends one frame to the destination its header says.
func (s socket) Write(frame []byte) (int, error) {
	if err := s.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return s.WriteTo(frame, &packet.Addr{HardwareAddr: frame[offDestination:offSource]})
}
